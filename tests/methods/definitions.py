"""What the methods' formulas say, once more: feedback, and the methods that send every entry.

Nothing of the package is used but the random words, which are pinned elsewhere. Formulas are in float64,
entry by entry; what is kept from step to step is float32, as the definitions say. Where a decision lies so
near to its edge that the rounding of float32 decides it, the entry is *loose*: either outcome is right.
"""

from __future__ import annotations

import math

import numpy as np

from hgc_horovod.core.random import Draw, key_of

Floats = np.ndarray
NEAR = 2e-6  # how near to an edge a decision is loose, relative
NAME, SEED = "layer", 7


def words(n: int, step: int, rank: int = 0, stream: int = 0, name: str = NAME) -> list[int]:
    return Draw(key_of(SEED, name), step, rank, stream).words(n).tolist()


def single(value: float) -> float:
    """The nearest float32."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


class Definition:
    """One rank's side of a method: what it sends of each gradient, and what it keeps.

    `sends` returns what is decoded, float64 (n,), and which entries are loose, bool (n,).
    """

    def __init__(
        self,
        keep: bool = False,
        momentum: float = 0.0,
        nesterov: bool = False,
        masking: bool = False,
        clip: float | None = None,
        world: int = 1,
        rank: int = 0,
    ) -> None:
        self.keep, self.momentum, self.nesterov, self.masking = keep, np.float32(momentum), nesterov, masking
        self.clip, self.world, self.rank, self.step = clip, world, rank, 0
        self.e: Floats | None = None
        self.u: Floats | None = None
        self.g: Floats | None = None
        self.sent: Floats | None = None  # which entries, for masking

    def take_up(self, gradient: Floats) -> Floats:
        """v of this step, float32."""
        g = gradient
        if self.clip is not None:
            norm = math.sqrt(math.fsum(float(x) ** 2 for x in g))
            limit = self.clip / math.sqrt(self.world)
            g = np.float32(min(1.0, limit / norm) if norm else 1.0) * g
        if self.e is None:
            self.e, self.u = np.zeros_like(g), np.zeros_like(g)
        if self.momentum:
            self.u = self.momentum * self.u + g
            g = g + self.momentum * self.u if self.nesterov else self.u
        self.g = g
        return self.e + g if self.keep else g

    def leave(self, v: Floats, decoded: Floats) -> None:
        """Keep what was not decoded, and end the step."""
        if self.keep:
            self.e = v - decoded.astype(np.float32)
        if self.masking and self.u is not None and self.sent is not None:
            self.u = np.where(self.sent, np.float32(0), self.u)
        self.step += 1

    def sends(self, v: Floats) -> tuple[Floats, Floats]:
        raise NotImplementedError


def buckets(n: int, bucket: int) -> list[range]:
    size = bucket or max(n, 1)
    return [range(begin, min(begin + size, n)) for begin in range(0, n, size)]


class Levels(Definition):
    """QSGD (norm "l2" or "max"), and TernGrad with one level and its clipping at `sigmas` deviations."""

    def __init__(
        self, bits: int, norm: str, bucket: int, sigmas: float | None = None, **more: object
    ) -> None:
        super().__init__(**more)
        self.bits, self.norm, self.bucket, self.sigmas = bits, norm, bucket, sigmas

    def sends(self, v: Floats) -> tuple[Floats, Floats]:
        n, s = v.size, 2 ** (self.bits - 1) - 1
        values, drawn = [float(x) for x in v], words(n, self.step, self.rank)
        limit = math.inf
        if self.sigmas is not None:
            limit = self.sigmas * math.sqrt(math.fsum(x * x for x in values) / max(n, 1))
        out, loose = np.zeros(n), np.zeros(n, bool)
        for places in buckets(n, self.bucket):
            if self.norm == "l2":
                norm = math.sqrt(math.fsum(values[i] ** 2 for i in places))
            else:
                norm = max(min(abs(values[i]), limit) for i in places)
            norm = single(norm)
            for i in places:
                if norm == 0:
                    continue
                exact = min(s * abs(values[i]) / norm, s)
                place = exact - drawn[i] / 2**32  # rounded up with the probability of the fraction of `exact`
                loose[i] = abs(place - round(place)) < NEAR * s
                out[i] = norm * math.copysign(math.ceil(place) / s, values[i])
        return out, loose


class Signs(Definition):
    """signSGD where `mean` is not set, EF-signSGD's (‖v‖₁/n)·sign(v) where it is. sign(0) = +1."""

    def __init__(self, mean: bool, bucket: int = 0, **more: object) -> None:
        super().__init__(**more)
        self.mean, self.bucket = mean, bucket

    def sends(self, v: Floats) -> tuple[Floats, Floats]:
        out = np.zeros(v.size)
        for places in buckets(v.size, self.bucket):
            size = math.fsum(abs(float(v[i])) for i in places) / len(places) if self.mean else 1.0
            for i in places:
                out[i] = -size if v[i] < 0 else size
        return out, np.zeros(v.size, bool)


class ClassMeans(Definition):
    """1-bit SGD: the mean of the values from 0 upwards, and that of those below."""

    def sends(self, v: Floats) -> tuple[Floats, Floats]:
        sides: dict[bool, list[float]] = {False: [], True: []}
        for x in v.tolist():
            sides[x < 0].append(x)
        means = {side: math.fsum(xs) / len(xs) if xs else 0.0 for side, xs in sides.items()}
        return np.array([means[x < 0] for x in v.tolist()]), np.zeros(v.size, bool)


class Tree(Definition):
    """8-bit approximation: a sign, zeros that are a decimal exponent, a one, and a fraction between 0.1 and 1
    in the remaining bits, whose middle is meant."""

    def __init__(self, bucket: int = 0, **more: object) -> None:
        super().__init__(**more)
        self.bucket = bucket
        self.codes = [0.0]
        for code in range(1, 128):
            digits = f"{code:07b}"
            fraction = digits.lstrip("0")[1:]
            zeros = 7 - 1 - len(fraction)
            part = (int(fraction or "0", 2) + 0.5) / 2 ** len(fraction)
            self.codes.append(10.0**-zeros * (0.1 + 0.9 * part))

    def sends(self, v: Floats) -> tuple[Floats, Floats]:
        out, loose = np.zeros(v.size), np.zeros(v.size, bool)
        for places in buckets(v.size, self.bucket):
            scale = max(abs(float(v[i])) for i in places)
            for i in places:
                if scale == 0:
                    continue
                ratio = abs(float(v[i])) / scale
                distance = np.abs(np.array(self.codes) - ratio)
                first, second = np.sort(distance)[:2]
                loose[i] = second - first < NEAR * max(ratio, 1e-6)
                out[i] = math.copysign(scale * self.codes[int(np.argmin(distance))], v[i])
        return out, loose


class Powers(Definition):
    """Natural compression: |v| between two powers of two becomes the upper one with probability
    |v|/lower - 1; below the least normal number it becomes that or 0."""

    def sends(self, v: Floats) -> tuple[Floats, Floats]:
        out, loose = np.zeros(v.size), np.zeros(v.size, bool)
        for i, (x, word) in enumerate(zip(v.tolist(), words(v.size, self.step, self.rank), strict=True)):
            if x == 0:
                continue
            lower = math.ldexp(0.5, math.frexp(abs(x))[1])
            lower, upper = (0.0, 2.0**-126) if lower < 2.0**-126 else (lower, 2 * lower)
            chance, lot = (abs(x) - lower) / (upper - lower), word / 2**32
            up = lot < chance and upper < 2.0**128
            out[i] = math.copysign(upper if up else lower, x)
        return out, loose
