"""Gradients that the methods are tried on: random, degenerate, and real ones of `gradients.npz`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

Floats = np.ndarray
FAMILIES: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "laplace": lambda rng, n: rng.laplace(size=n),
    "student t": lambda rng, n: rng.standard_t(3, n),
    "zeros": lambda rng, n: np.zeros(n),
    "constant": lambda rng, n: np.full(n, 0.37),
    "two values": lambda rng, n: rng.choice([-0.5, 0.5], n),
    "one hot": lambda rng, n: np.eye(1, n, n // 2)[0] * -3.0,
    "mostly zeros": lambda rng, n: rng.standard_normal(n) * (rng.random(n) < 0.1),
    "wide": lambda rng, n: rng.standard_normal(n) * 10.0 ** rng.uniform(-15, 15, n),
}
SMOOTH = ("normal", "laplace", "student t")
DENORMAL = "denormal"  # only where a method's arithmetic is exact there


def gradients(family: str, n: int, steps: int, seed: int = 0) -> list[Floats]:
    """Consecutive gradients, float32 (n,) each."""
    rng = np.random.default_rng([seed, n, len(family)])
    if family == DENORMAL:
        return [(rng.standard_normal(n) * 1e-42).astype(np.float32) for _ in range(steps)]
    return [FAMILIES[family](rng, n).astype(np.float32) for _ in range(steps)]


@cache
def real() -> dict[str, Floats]:
    """Gradients of real layers, float32 in the layer's shape, by the layer's name."""
    with np.load(Path(__file__).with_name("gradients.npz")) as pack:
        return {name: pack[name].astype(np.float32) for name in pack.files if name != "made_with"}
