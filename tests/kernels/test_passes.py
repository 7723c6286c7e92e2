"""The passes that methods are made of: every native variant gives NumPy's bytes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgc_horovod.core.passes import NumPyPasses, Passes, half_octave
from hgc_horovod.core.random import Draw, key_of
from hgc_horovod.kernels.passes import NativePasses
from tests.core.samples import LARGEST, TINY, gaussian, tensors

from .pairs import PATHS, THREADS
from .test_hostile import TENSORS

NUMPY: Passes = NumPyPasses()
SIZES = (0, 1, 2, 7, 63, 64, 65, 511, 512, 513, 2047, 2048, 2049, 4097, 10_007)
LARGE = 200_003
DRAW = Draw(key_of(1, "weight"), step=70, rank=3, stream=2)
EDGES = {count: np.linspace(0.01, 0.99, count).astype(np.float32) for count in (0, 1, 3, 7, 16, 17, 60, 127)}
HOSTILE = {
    **TENSORS,
    "nothing": lambda: np.zeros(0, np.float32),
    "one zero": lambda: np.zeros(1, np.float32),
    "one negative zero": lambda: -np.zeros(1, np.float32),
    "one": lambda: np.full(1, -3, np.float32),
    "one denormal": lambda: np.full(1, TINY, np.float32),
    "one largest": lambda: np.full(1, -LARGEST, np.float32),
    "largest beside denormals": lambda: np.where(np.arange(5000) % 9, TINY, -LARGEST).astype(np.float32),
    "near the largest": lambda: np.linspace(0.9 * LARGEST, LARGEST, 3000).astype(np.float32),
}


def variants() -> Iterator[NativePasses]:
    for path in PATHS:
        for threads in THREADS:
            yield NativePasses(threads, path, grain=1)


def bits_of(result: Any) -> Any:
    """What two results must share: types, shapes and every bit."""
    if isinstance(result, np.ndarray):
        return result.dtype, result.shape, result.tobytes()
    if isinstance(result, tuple):
        return type(result), *map(bits_of, result)
    return type(result), result.hex() if isinstance(result, float) else result


def assert_alike(call: Callable[[Passes], Any], where: str = "") -> Any:
    """The result of every variant is NumPy's, which is returned."""
    with np.errstate(all="ignore"):
        expected = call(NUMPY)
    for passes in variants():
        assert bits_of(call(passes)) == bits_of(expected), (passes.path, passes.threads, where)
    return expected


def buckets_of(n: int) -> list[int]:
    return sorted({1, 3, 64, 511, 512, 2049, max(n - 1, 1), max(n, 1), n + 1})


def scales_of(values: np.ndarray, bucket: int) -> np.ndarray:
    """Of the passes' own, with a zero and a denormal among them."""
    scales = NUMPY.bucket_max(values, bucket)
    scales[2::5] = 0
    scales[4::7] = TINY
    return scales


def every_pass(values: np.ndarray, buckets: list[int]) -> None:
    n = values.size
    assert_alike(lambda p: p.class_means(values), "class_means")
    assert_alike(lambda p: p.signs(values), "signs")
    assert_alike(lambda p: p.round_powers(values, DRAW), "round_powers")
    middle = float(np.median(np.abs(values).astype(np.float64))) if n else 1.0
    for bound in (0.0, TINY, middle, 2 * middle, LARGEST, np.inf, -1.0):
        assert_alike(lambda p, bound=bound: p.sum_below(values, bound), f"sum_below {bound}")
    mean = float(np.abs(values.astype(np.float64)).mean()) if n else 0.0
    for factor in (0.0, 0.1 / max(mean, TINY), 3 / max(mean, TINY), 1e300):
        assert_alike(lambda p, factor=factor: p.lucky(values, factor, DRAW), f"lucky {factor}")
    top = int(half_octave(np.abs(values).max(initial=0)))
    for bucket in buckets:
        where = f"bucket {bucket}"
        scales = scales_of(values, bucket)
        for name in ("bucket_max", "bucket_norm", "bucket_mean"):
            assert_alike(lambda p, n=name, b=bucket: getattr(p, n)(values, b), f"{name} {where}")
        for levels in (1, 4, 127):
            assert_alike(
                lambda p, s=scales, b=bucket, t=levels: p.round_levels(values, s, b, t, DRAW),
                f"round_levels {levels} {where}",
            )
        for edges in (EDGES[7], EDGES[60]):
            assert_alike(
                lambda p, s=scales, b=bucket, e=edges: p.nearest_levels(values, s, b, e),
                f"nearest_levels {edges.size} {where}",
            )
        limits = (scales * np.float32(0.7)).astype(np.float32)
        assert_alike(lambda p, s=limits, b=bucket: p.at_least(values, s, b), f"at_least {where}")
        for last in (top, top - 20, -5, 3000):
            assert_alike(
                lambda p, b=bucket, t=last: p.log_histograms(values, b, t), f"log_histograms {where}"
            )


@pytest.mark.parametrize("n", SIZES)
def test_all_sizes_and_buckets(n):
    every_pass(gaussian(n, n), buckets_of(n))


def test_a_large_tensor():
    every_pass(gaussian(LARGE, 1), [1000, 65_536, LARGE])


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_tensors(case):
    values = HOSTILE[case]()
    every_pass(values, [1, 512, 4096, max(values.size, 1)])


@given(tensors(max_size=80), st.integers(1, 90))
def test_any_tensor(values, bucket):
    every_pass(values, [bucket])


@pytest.mark.parametrize("n", [0, 1, 5, 64, 2049, LARGE])
def test_words(n):
    for draw in (DRAW, Draw((2**32 - 1, 2**32 - 1), 2**32 + 5, -1, 2**32 - 1)):
        for passes in variants():
            assert (passes.words(draw, n) == draw.words(n)).all()


@pytest.mark.parametrize("count", EDGES)
def test_numbers_of_edges(count):
    values, edges = gaussian(5000, 2), EDGES[count]
    values[:count] = edges
    values[count : 2 * count] = -edges
    one = np.ones(1, np.float32)
    for each in (edges, edges - np.float32(0.2), np.sort(np.concatenate([edges[::2]] * 2))[:127]):
        for scale in (one, 0 * one, TINY * one):
            assert_alike(lambda p, e=each, s=scale: p.nearest_levels(values, s, 5000, e))
    codes = NUMPY.nearest_levels(values, one, 5000, edges)
    assert codes.max(initial=0) >> 1 == count
    assert (codes[:count] == 2 * np.arange(1, count + 1)).all()


@pytest.mark.parametrize("case", ["gaussian", *HOSTILE])
def test_moments(case):
    values = HOSTILE[case]() if case in HOSTILE else gaussian(LARGE, 4)
    n = values.size
    zero = np.zeros(n, np.float32)
    for decay in (0.0, 0.9, 0.999, 1.0):
        got = assert_alike(lambda p, d=decay: p.moments(values, zero, zero, d))
        for _ in range(3):
            before = got
            got = assert_alike(lambda p, d=decay, b=before: p.moments(values, b.mean, b.square, d))
            assert np.isfinite(got.mean).all() and np.isfinite(got.square).all()
            assert np.isfinite(got.norm_squared) and np.isfinite(got.spread)
    full = np.full(n, LARGEST, np.float32)
    for most in (full, -full):
        got = assert_alike(lambda p, m=most: p.moments(m, m, full, 0.9))
        assert np.isfinite(got.mean).all() and np.isfinite(got.spread)


def test_moments_by_their_definition():
    values, mean, square = gaussian(1000), gaussian(1000, 1), gaussian(1000, 2) ** 2
    got = NUMPY.moments(values, mean, square, 0.9)
    assert np.allclose(got.mean, 0.9 * mean + 0.1 * values, atol=1e-6)
    assert np.allclose(got.square, 0.9 * square + 0.1 * values**2, atol=1e-6)
    assert got.norm_squared == pytest.approx((got.mean.astype(float) ** 2).sum(), rel=1e-5)
    assert got.spread == pytest.approx(np.abs(got.square - got.mean.astype(float) ** 2).sum(), rel=1e-5)


@pytest.mark.parametrize("n", [*range(20), 2047, 2048, 2049, 2055, LARGE])
def test_powers(n):
    codes = np.random.default_rng(n).integers(0, 2 * 255, n).astype(np.uint16)
    packed = assert_alike(lambda p: p.pack_powers(codes))
    assert packed.size == (9 * n + 7) // 8
    assert_alike(lambda p: p.pack_powers(codes + np.uint16(512)))  # what is above 9 bits is left out
    for factor in (1.0, -0.3, TINY, 0.0):
        padded = np.concatenate([gaussian(n, 3), np.full(9, 7, np.float32)])

        def added(p: Passes, factor: float = factor, padded: np.ndarray = padded) -> np.ndarray:
            out = padded.copy()
            p.add_powers(packed, factor, out[:n])
            return out

        total = assert_alike(added)
        level = (codes >> 1).astype(np.float64)
        value = np.where(level > 0, 2.0 ** (level - 127), 0) * np.where(codes & 1, -1, 1)
        with np.errstate(over="ignore"):
            assert np.allclose(total[:n], (padded[:n] + factor * value).astype(np.float32), atol=1e-6)


def test_powers_are_right_on_average():
    values = gaussian(2000) * np.float32(2) ** gaussian(2000, 1, 10)
    total, rounds = np.zeros(2000, np.float32), 400
    for step in range(rounds):
        codes = NUMPY.round_powers(values, DRAW._replace(step=step))
        NUMPY.add_powers(NUMPY.pack_powers(codes), 1 / rounds, total)
    assert (np.abs(total / values - 1) < 0.15).all() and abs((total / values - 1).mean()) < 0.002


def test_levels_are_right_on_average():
    values, rounds = gaussian(2000), 400
    scales, table = NUMPY.bucket_max(values, 512), np.arange(5) / 4
    total = np.zeros(2000)
    for step in range(rounds):
        codes = NUMPY.round_levels(values, scales, 512, 4, DRAW._replace(step=step))
        total += scales[np.arange(2000) // 512] * table[codes >> 1] * np.where(codes & 1, -1, 1) / rounds
    assert np.abs(total - values).max() < 5 * scales.max() / 8 / np.sqrt(rounds)


@pytest.mark.parametrize("rows", [0, 1, 5, 130])
@pytest.mark.parametrize("columns", [0, 1, 3, 64, 2500])
@pytest.mark.parametrize("atoms", [0, 1, 4])
def test_outer_products(atoms, rows, columns):
    left, right = gaussian(atoms * rows, 1), gaussian(atoms * columns, 2)
    left[::7] = 0
    right[::5] = -TINY
    for factor in (0.5, -3e-9, 1e30):

        def added(p: Passes, factor: float = factor) -> np.ndarray:
            out = gaussian(rows * columns, 3)
            p.add_outer(left.reshape(atoms, rows), right.reshape(atoms, columns), factor, out)
            return out

        total = assert_alike(added)
    if atoms == 0:
        assert (total == gaussian(rows * columns, 3)).all()


def test_codes_are_those_of_the_kernels():
    codes = NUMPY.signs(gaussian(1000))
    packed = assert_alike(lambda p: p.pack_codes(codes, 1))
    levels, scales = np.array([1, -1], np.float32), gaussian(2, 1)

    def added(p: Passes) -> np.ndarray:
        out = gaussian(1000, 2)
        p.add_codes(packed, 1, levels, scales, 512, out)
        return out

    assert_alike(added)


def test_a_bucket_far_larger_than_the_tensor():
    values, one = gaussian(10), np.ones(1, np.float32)
    for bucket in (2**40, 2**62, 2**64):
        assert_alike(lambda p, b=bucket: (p.bucket_max(values, b), p.bucket_norm(values, b)))
        assert_alike(lambda p, b=bucket: p.round_levels(values, one, b, 4, DRAW))
        assert_alike(lambda p, b=bucket: p.at_least(values, one, b))


def test_one_scale_is_that_of_all_entries():
    values, one = gaussian(5000), np.ones(1, np.float32)
    assert_alike(lambda p: p.round_levels(values, one, 512, 4, DRAW))
    assert_alike(lambda p: p.at_least(values, one, 512))


def test_what_would_be_read_or_written_beyond_an_end_is_refused():
    passes, values = NativePasses(), gaussian(100)
    one, draw = np.ones(1, np.float32), DRAW
    for wrong in (values.astype(np.float64), values[::2], values.reshape(10, 10)):
        for call in (passes.signs, passes.class_means):
            with pytest.raises(ValueError, match="values must be contiguous float32"):
                call(wrong)
    with pytest.raises(ValueError, match="scales must be"):
        passes.round_levels(values, np.ones(3, np.float32), 50, 4, draw)
    with pytest.raises(ValueError, match="top must be"):
        passes.round_levels(values, one, 100, 128, draw)
    with pytest.raises(ValueError, match="number of edges"):
        passes.nearest_levels(values, one, 100, np.ones(128, np.float32))
    with pytest.raises(ValueError, match="limits must be"):
        passes.at_least(values, np.ones(3, np.float32), 50)
    with pytest.raises(ValueError, match="bucket must be"):
        passes.bucket_max(values, 0)
    with pytest.raises(ValueError, match="packed must be"):
        passes.add_powers(np.zeros(112, np.uint8), 1.0, values)
    with pytest.raises(ValueError, match="mean must be"):
        passes.moments(values, values[1:], values, 0.9)
    with pytest.raises(ValueError, match="do not fit"):
        passes.add_outer(values.reshape(2, 50), values.reshape(2, 50), 1.0, values)
    values.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        passes.add_powers(np.zeros(113, np.uint8), 1.0, values)


def test_a_copy_runs_as_the_original():
    again = pickle.loads(pickle.dumps(NativePasses(2, "portable", 7)))
    assert (again.threads, again.path, again._grain) == (2, "portable", 7)
