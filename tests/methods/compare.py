"""Follows a codec and a definition through the same steps."""

from __future__ import annotations

import numpy as np

from hgc_horovod import Codec
from hgc_horovod.core.method import Method

from .definitions import NAME, SEED, Definition

SMALLEST = 2.0**-149
MOST_LOOSE = 0.02


def codec_of(method: Method, n: int, **more: object) -> Codec:
    return Codec(method, n, NAME, SEED, **more)


def follow(
    codec: Codec, definition: Definition, gradients: list[np.ndarray], tolerance: float = 1e-6
) -> list[np.ndarray]:
    """Every step's decoded values and residual are the definition's, to float32 rounding; and the decoded
    values are returned. `tolerance` is of the largest numbers that an entry comes of, in all steps so far,
    since rounding is kept."""
    decoded: list[np.ndarray] = []
    allowed = np.zeros(codec.size)
    for number, gradient in enumerate(gradients):
        got = codec.decode_sum([codec.encode(gradient)])
        v = definition.take_up(gradient)
        want, loose = definition.sends(v)
        magnitudes = np.unique(np.abs(v[loose])).size  # entries that are alike are decided alike
        assert magnitudes <= max(MOST_LOOSE * loose.size, 1), f"step {number}: {loose.sum()} loose entries"
        want = np.where(loose, got, want)
        definition.leave(v, want)
        allowed = allowed + tolerance * np.maximum(np.abs(v), np.abs(want)) + 4 * SMALLEST
        check(got, want, allowed, f"step {number}, decoded")
        if definition.keep:
            check(codec.residual, definition.e, allowed, f"step {number}, residual")
        else:
            assert not codec.residual.any()
        if definition.momentum:
            assert codec.momentum is not None
            check(codec.momentum, definition.u, tolerance * np.abs(definition.u) + SMALLEST, "momentum")
        decoded.append(got)
    return decoded


def check(got: np.ndarray, want: np.ndarray, allowed: np.ndarray, what: str) -> None:
    wrong = np.flatnonzero(~(np.abs(got.astype(np.float64) - want) <= allowed))
    if wrong.size:
        i = wrong[0]
        raise AssertionError(
            f"{what}: {wrong.size} of {got.size} entries, the first {i}: {got[i]}, {want[i]}"
        )
