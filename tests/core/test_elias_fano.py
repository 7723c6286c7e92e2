import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgc_horovod.core import bits, elias_fano

from . import slow

MILLION = 10**6


def bits_per_index(n: int, k: int) -> float:
    return (elias_fano.high_bits(n, k) + k * elias_fano.low_bits(n, k)) / k


def roundtrip(indices: list[int], n: int, k: int) -> None:
    positions = np.array(indices, np.int64)
    packed = elias_fano.pack_high(positions, n, k)
    assert packed.dtype == np.uint8
    assert int.from_bytes(packed.tobytes(), "little") == slow.high_vector(indices, n, k)
    assert packed.size == bits.packed_bytes(elias_fano.high_bits(n, k), 1)
    high = elias_fano.unpack_high(packed, n, k)
    low = positions & ((1 << elias_fano.low_bits(n, k)) - 1)
    assert (high << elias_fano.low_bits(n, k) | low).tolist() == indices


@st.composite
def index_sets(draw):
    """n, k and up to k ascending positions."""
    n = draw(st.integers(1, 300) | st.integers(1, 2**31 - 1))
    k = draw(st.integers(1, min(n, 60)) | st.just(min(n, 60)))
    return n, k, sorted(draw(st.sets(st.integers(0, n - 1) | st.just(n - 1), max_size=k)))


@given(index_sets())
def test_any_set_comes_back(case):
    n, k, indices = case
    roundtrip(indices, n, k)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 64, 100])
def test_all_positions_no_position_and_the_last_ones(n):
    roundtrip(list(range(n)), n, n)
    for k in range(1, n + 1):
        roundtrip([], n, k)
        roundtrip(list(range(n - k, n)), n, k)
        roundtrip(list(range(k)), n, k)


def test_one_position_out_of_the_largest_tensor():
    n = 2**31 - 1
    for position in (0, 1, n // 2, n - 1):
        roundtrip([position], n, 1)


@given(st.integers(1, 2**31 - 1), st.data())
def test_sizes_follow_from_n_and_k(n, data):
    k = data.draw(st.integers(1, n))
    low = elias_fano.low_bits(n, k)
    assert k << low <= n < k << low + 1
    assert elias_fano.high_bits(n, k) == slow.high_bits(n, k)
    # Within half a bit of the entropy bound of k positions, and below 2 + log2(n/k) per index by definition.
    assert bits_per_index(n, k) <= 2 + math.log2(n / k) + 1 / k


def test_an_empty_tensor_takes_no_bits():
    assert elias_fano.low_bits(0, 0) == elias_fano.high_bits(0, 0) == 0
    roundtrip([], 0, 0)


@pytest.mark.parametrize(("k", "most"), [(MILLION // 100, 8.7), (MILLION // 1000, 12.1)])
def test_bits_per_index_at_the_usual_densities(k, most):
    assert bits_per_index(MILLION, k) <= most
    chosen = np.sort(np.random.default_rng(k).choice(MILLION, k, replace=False))
    written = 8 * elias_fano.pack_high(chosen, MILLION, k).size + k * elias_fano.low_bits(MILLION, k)
    assert written / k <= most


def test_damaged_high_bits_are_refused():
    n, k = 100, 10
    packed = elias_fano.pack_high(np.arange(0, 100, 10), n, k)
    with pytest.raises(ValueError, match="got 2 bytes"):
        elias_fano.unpack_high(packed[:2], n, k)
    with pytest.raises(ValueError, match="bytes"):
        elias_fano.unpack_high(np.append(packed, np.uint8(0)), n, k)
    with pytest.raises(ValueError, match="at most 10 fit"):
        elias_fano.unpack_high(np.packbits(np.arange(8 * packed.size) <= k, bitorder="little"), n, k)
    behind = packed * np.uint8(0)
    assert elias_fano.high_bits(n, k) % 8 != 0
    behind[-1] = 128  # one bit behind the end of the vector
    with pytest.raises(ValueError, match="high-bit vector"):
        elias_fano.unpack_high(behind, n, k)
