"""Which tensor is sent by which method."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from .core.method import Method

Matcher = Callable[[str, Any], bool]
Policy = Sequence[tuple[str | Matcher, Method]]


def check(policy: Policy, default: Method) -> list[tuple[str | Matcher, Method]]:
    """The policy as a list; ValueError where it is none."""
    pairs = list(policy)
    for pair in pairs:
        if not (
            isinstance(pair, tuple)
            and len(pair) == 2
            and (isinstance(pair[0], str) or callable(pair[0]))
            and isinstance(pair[1], Method)
        ):
            raise ValueError(
                "policy must be a list of pairs: a name pattern such as '*.bias', or a function of a name "
                f"and a parameter, and a hgc_horovod.Method; got {pair!r}"
            )
        feedback = pair[1].feedback
        if feedback.momentum and feedback.momentum != default.feedback.momentum:
            raise ValueError(
                f"policy: momentum is one for all tensors; got {feedback.momentum} for {pair[0]!r} and "
                f"{default.feedback.momentum} elsewhere"
            )
    return pairs


def methods_for(
    names: Sequence[tuple[str, Any]], policy: list[tuple[str | Matcher, Method]], default: Method
) -> list[Method]:
    """The method of each parameter: of the first entry that matches its name, or the default.

    Entries that match no parameter are warned of.
    """
    chosen = [
        next((index for index, (what, _) in enumerate(policy) if _matches(what, *named)), None)
        for named in names
    ]
    unused = [what for index, (what, _) in enumerate(policy) if index not in chosen]
    if unused:
        warnings.warn(
            f"policy: no parameter is left for {', '.join(map(repr, unused))}: none matches, or entries "
            "above take them all",
            stacklevel=2,
        )
    return [default if index is None else policy[index][1] for index in chosen]


def method_for(name: str, tensor: Any, policy: list[tuple[str | Matcher, Method]], default: Method) -> Method:
    """The method of one tensor."""
    return next((method for what, method in policy if _matches(what, name, tensor)), default)


def _matches(what: str | Matcher, name: str, parameter: Any) -> bool:
    return fnmatchcase(name, what) if isinstance(what, str) else bool(what(name, parameter))
