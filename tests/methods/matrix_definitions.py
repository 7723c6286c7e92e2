"""What the formulas of the methods say that take a tensor for a matrix, or average what all ranks send; see
`definitions`."""

from __future__ import annotations

import math

import numpy as np

from hgc_horovod.core.random import EVERYONE

from .definitions import Floats, words
from .sparse_definitions import count

START_STREAM, PLACES_STREAM, ATOM_STREAM = 2, 3, 4


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """The dimensions in two groups, the first of which have as many rows as makes rows + columns least."""
    n = math.prod(shape)
    cuts = [math.prod(shape[:cut]) for cut in range(1, max(len(shape), 2))]
    rows = min(cuts, key=lambda r: r + n // r)
    return rows, n // rows


class PowerSGD:
    """All ranks: P = mean(M·Q) orthogonalized, Q = mean(Mᵀ·P), and each keeps M - P·(Mᵀ·P)ᵀ."""

    def __init__(self, shape: tuple[int, ...], rank: int, ranks: int, momentum: float = 0.0) -> None:
        self.shape = matrix_shape(shape)
        self.rank, self.momentum = min(rank, *self.shape), momentum
        drawn = words(self.rank * self.shape[1], 0, EVERYONE, START_STREAM)
        self.first = (np.array(drawn) / 2.0**31 - 1).reshape(self.rank, self.shape[1]).T
        self.q = self.first
        self.e = np.zeros((ranks, *self.shape))
        self.u = np.zeros((ranks, *self.shape))

    def step(self, gradients: list[Floats]) -> Floats:
        g = np.stack(gradients).astype(np.float64).reshape(self.e.shape)
        if self.momentum:
            self.u = self.momentum * self.u + g
            g = self.u
        matrices = self.e + g
        for column in range(self.rank):
            if not self.q[:, column].any():
                self.q[:, column] = self.first[:, column]
        p = orthogonal(np.mean([matrix @ self.q for matrix in matrices], axis=0))
        each = [matrix.T @ p for matrix in matrices]
        self.q = np.mean(each, axis=0)
        self.e = matrices - np.stack([p @ q.T for q in each])
        return (p @ self.q.T).reshape(-1)


def orthogonal(columns: Floats) -> Floats:
    """Gram and Schmidt's; a column that depends on those before, as far as float32 can tell, becomes 0."""
    out: list[Floats] = []
    for column in columns.T:
        rest = column - sum((unit * (unit @ column) for unit in out), np.zeros_like(column))
        length = np.linalg.norm(rest)
        out.append(rest / length if length > 1e-6 * np.linalg.norm(column) else np.zeros_like(rest))
    return np.stack(out, axis=1)


class RandomPlaces:
    """All ranks: the mean of k entries, whose places all draw alike; each keeps the others."""

    def __init__(self, n: int, density: float, ranks: int) -> None:
        self.n, self.k, self.number = n, count(n, density), 0
        self.e = np.zeros((ranks, n), np.float32)

    def places(self) -> list[int]:
        """The first different places drawn; those that are left out, where these are fewer."""
        few = min(self.k, self.n - self.k)
        drawn: dict[int, None] = {}
        for word in words(100 * self.n + 100, self.number, EVERYONE, PLACES_STREAM):
            if len(drawn) == few:
                break
            drawn.setdefault(word * self.n >> 32)
        return sorted(drawn) if few == self.k else sorted(set(range(self.n)) - set(drawn))

    def step(self, gradients: list[Floats]) -> Floats:
        v, places, out = self.e + np.stack(gradients), self.places(), np.zeros(self.n)
        self.number += 1
        out[places] = np.mean(v[:, places].astype(np.float64), axis=0)
        self.e = v.copy()
        self.e[:, places] = 0
        return out


class Atoms:
    """Spectral ATOMO on one rank: the singular vectors come of the eigenvectors of MᵀM."""

    def __init__(self, shape: tuple[int, ...], atoms: int, rank: int = 0) -> None:
        self.shape, self.atoms, self.rank, self.number = matrix_shape(shape), atoms, rank, 0

    def step(self, gradient: Floats) -> tuple[Floats, bool]:
        """What is decoded, and whether a draw lies too near to its chance to tell."""
        matrix = gradient.astype(np.float64).reshape(self.shape)
        out = np.zeros(self.shape)
        right = np.linalg.eigh(matrix.T @ matrix)[1].T[::-1][: min(self.shape)]
        projections = [matrix @ row for row in right]
        sizes = [float(np.linalg.norm(projection)) for projection in projections]
        chances = probabilities(sizes, self.atoms)
        drawn = np.array(words(len(sizes), self.number, self.rank, ATOM_STREAM)) / 2**32
        self.number += 1
        for projection, row, chance, lot in zip(projections, right, chances, drawn, strict=True):
            if lot < chance:
                out += np.outer(projection, row) / chance
        near = any(
            abs(lot - chance) < 2e-6 and chance < 1 and size > 1e-6 * sizes[0]
            for lot, chance, size in zip(drawn, chances, sizes, strict=True)
        )
        return out.reshape(-1), near


def probabilities(sizes: list[float], expected: float) -> list[float]:
    """p_i = s·λ_i / Σλ; where the first one exceeds 1, it is 1, and the others share the s - 1."""
    if not sizes or not sum(sizes):
        return [0.0] * len(sizes)
    first = expected * sizes[0] / sum(sizes)
    if first > 1:
        return [1.0, *probabilities(sizes[1:], expected - 1)]
    return [expected * size / sum(sizes) for size in sizes]
