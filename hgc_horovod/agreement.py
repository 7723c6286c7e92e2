"""What ranks say where they do not agree: the same words for every attachment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class CompressionError(RuntimeError):
    """A rank could not compress a gradient. Raised on every rank; the message names the rank and tensor."""


def difference(settings: Sequence[Mapping[str, Any]]) -> str | None:
    """The first setting in which two ranks' plain data differ, or None."""
    first = dict(_flat(settings[0]))
    for rank, other in enumerate(dict(_flat(one)) for one in settings):
        for key in [*first, *other]:
            mine, its = (flat.get(key, "missing") for flat in (first, other))
            if mine != its:
                return f"all ranks need the same settings; {key} is {mine} on rank 0, {its} on rank {rank}"
    return None


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}".lstrip("."))
    else:
        yield path, value
