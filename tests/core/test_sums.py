import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgc_horovod.core import sums

from . import slow
from .samples import LARGEST, TINY, gaussian, tensors


def exact(values: np.ndarray) -> tuple[float, float]:
    numbers = values.astype(np.float64).tolist()
    return math.fsum(abs(v) for v in numbers), math.fsum(v * v for v in numbers)


@given(tensors(min_size=2), st.randoms(use_true_random=False))
def test_any_order_gives_the_very_same_sum(tensor, random):
    order = list(range(tensor.size))
    random.shuffle(order)
    for total in (sums.abs_sum, sums.square_sum):
        first = total(tensor)
        assert isinstance(first, float)
        assert first.hex() == total(tensor[order]).hex() == total(tensor[::-1]).hex() == total(-tensor).hex()


def test_any_order_of_a_large_tensor_gives_the_very_same_sum():
    tensor = gaussian(100_000) * np.float32(10) ** gaussian(100_000, seed=1, scale=8)
    order = np.random.default_rng(2).permutation(tensor.size)
    assert sums.abs_sum(tensor) == sums.abs_sum(tensor[order])
    assert sums.square_sum(tensor) == sums.square_sum(tensor[order])


@given(tensors(min_size=1))
def test_the_absolute_sum_by_its_definition(tensor):
    assert sums.abs_sum(tensor) == (slow.abs_sum([abs(v) for v in tensor.tolist()]) if tensor.any() else 0.0)


def test_a_long_absolute_sum_by_its_definition():
    for seed in range(5):
        tensor = gaussian(5000, seed) * np.exp(gaussian(5000, seed + 10, scale=3))
        assert sums.abs_sum(tensor) == slow.abs_sum([abs(v) for v in tensor.tolist()])


@given(tensors())
def test_accuracy_of_small_sums(tensor):
    absolute, square = exact(tensor)
    assert sums.abs_sum(tensor) == pytest.approx(absolute, rel=1e-14, abs=0)
    assert sums.square_sum(tensor) == pytest.approx(square, rel=1e-6, abs=0)


@pytest.mark.parametrize("n", [10, 1000, 100_000])
@pytest.mark.parametrize("scale", [1e-38, 1e-6, 1.0, 1e37])
def test_accuracy_of_gaussian_sums(n, scale):
    tensor = gaussian(n, scale=scale)
    absolute, square = exact(tensor)
    assert sums.abs_sum(tensor) == pytest.approx(absolute, rel=1e-9, abs=0)
    assert sums.square_sum(tensor) == pytest.approx(square, rel=1e-6, abs=0)


def test_a_large_dynamic_range():
    tensor = np.full(10_000, 1e-30, np.float32)
    tensor[1234] = 1e30
    absolute, square = exact(tensor)
    assert sums.abs_sum(tensor) == pytest.approx(absolute, rel=1e-9)
    assert sums.square_sum(tensor) == pytest.approx(square, rel=1e-9)
    spread = np.float32(2) ** np.arange(-149, 128, dtype=np.float32)
    assert sums.abs_sum(spread) == pytest.approx(exact(spread)[0], rel=1e-12)


def test_no_overflow_and_no_underflow():
    top = np.full(100_000, LARGEST, np.float32)
    assert sums.abs_sum(top) == LARGEST * 100_000
    assert sums.square_sum(top) == pytest.approx(LARGEST**2 * 100_000, rel=1e-6)
    assert sums.abs_sum(np.full(3, TINY, np.float32)) == 3 * TINY
    assert sums.square_sum(np.full(3, TINY, np.float32)) == 3 * TINY**2


def test_nothing_and_zeros():
    for values in ([], [0.0], [0.0, -0.0, 0.0]):
        assert sums.abs_sum(np.array(values, np.float32)) == 0.0
        assert sums.square_sum(np.array(values, np.float32)) == 0.0


@given(tensors(min_size=1, max_size=1))
def test_one_value_is_exact(tensor):
    value = float(tensor[0])
    assert sums.abs_sum(tensor) == abs(value)
    assert sums.square_sum(tensor) == value * value
