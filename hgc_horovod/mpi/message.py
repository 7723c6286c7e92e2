"""What travels with a tensor's values, so that the same exchange tells whether its step counts.

A *tag* says what a rank reduces: the tensor's number, the op, and whether it is of float64. Behind a payload
stand eight bytes,

| bytes | value                                       |
|-------|---------------------------------------------|
| 1     | status; 0 where nothing arrived             |
| 3     | zero                                        |
| 4     | tag, unsigned, little-endian                |

and behind the values of a vector that is summed one float for each rank, in which all others write 0, so that
the sums are each rank's own: tag + 1, or its negative where the rank failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from ..core.types import Bytes
from .arrays import Array

TRAILER = np.dtype([("status", "u1"), ("zero", "u1", 3), ("tag", "<u4")])
MOST_TENSORS = 2**21  # whose tags float32 holds exactly


class Status(IntEnum):
    ABSENT = 0
    FINITE = 1
    NOT_FINITE = 2
    FAILED = 3


def tag_of(number: int, summed: bool, dtype: np.dtype[Any]) -> int:
    return 4 * number + 2 * summed + (dtype == np.float64)


def write_trailer(message: Bytes, tag: int, status: Status) -> None:
    message[-TRAILER.itemsize :].view(TRAILER)[0] = (status, 0, tag)


def read_trailers(gathered: Sequence[Bytes]) -> tuple[list[int], list[Status]]:
    """The ranks' tags and statuses, of their messages. Where nothing arrived the tag is -1."""
    trailers = np.stack([one[-TRAILER.itemsize :] for one in gathered]).view(TRAILER)[:, 0]
    statuses = [Status(n) if n in tuple(Status) else Status.ABSENT for n in trailers["status"].tolist()]
    tags = zip(trailers["tag"].tolist(), statuses, strict=True)
    return [tag if status else -1 for tag, status in tags], statuses


def write_number(numbers: Array, rank: int, tag: int, status: Status) -> None:
    numbers[rank] = -(tag + 1) if status is Status.FAILED else tag + 1


def read_numbers(numbers: Array) -> tuple[list[int], list[Status]]:
    """The ranks' tags and statuses, of their numbers (ranks,). Where nothing arrived the tag is -1."""
    tags, statuses = [], []
    for number in numbers.tolist():
        arrived = number != 0 and float(number).is_integer()
        tags.append(int(abs(number)) - 1 if arrived else -1)
        statuses.append(Status.FAILED if number < 0 else Status.FINITE if arrived else Status.ABSENT)
    return tags, statuses


def check_tags(names: Sequence[str], mine: int, tags: Sequence[int]) -> None:
    """ValueError, on every rank, where two ranks reduce different tensors, or in different ways."""
    for rank, tag in enumerate(tags):
        if tag != mine:
            raise ValueError(
                "all ranks must reduce the same tensors in the same order, by the same op; here it is "
                f"{_describe(names, mine)}, and on rank {rank} {_describe(names, tag)}"
            )


def _describe(names: Sequence[str], tag: int) -> str:
    number, way = divmod(tag, 4)
    if not 0 <= number < len(names):
        return "something else"
    return f"the {'sum' if way & 2 else 'average'} of {names[number]!r}{' in float64' if way & 1 else ''}"
