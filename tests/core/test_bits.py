import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgc_horovod.core import bits

from . import slow


def check_both_ways(values: list[int], width: int) -> None:
    packed = bits.pack(np.array(values, np.uint64), width)
    assert packed.dtype == np.uint8
    assert packed.tobytes() == slow.pack_fields(values, width)
    assert packed.size == bits.packed_bytes(len(values), width)
    read = bits.unpack(packed, width, len(values))
    assert read.dtype == np.uint64
    assert read.tolist() == values == slow.unpack_fields(packed.tobytes(), width, len(values))


@pytest.mark.parametrize("width", range(64))
def test_every_width_against_big_integers(width):
    rng = np.random.default_rng(width)
    # The counts at which a field ends just before, at and just behind a byte's edge, among others.
    edges = {edge // max(width, 1) + d for edge in (8, 16, 64, 256) for d in (-1, 0, 1)}
    for count in sorted({0, 1, 2, 3, 7, 8, 9, 15, 63, 64, 65} | {e for e in edges if e >= 0}):
        largest = (1 << width) - 1
        check_both_ways([0] * count, width)
        check_both_ways([largest] * count, width)
        check_both_ways(rng.integers(0, largest, count, np.uint64, endpoint=True).tolist(), width)


@given(st.data(), st.integers(0, 63))
def test_any_fields(data, width):
    check_both_ways(data.draw(st.lists(st.integers(0, (1 << width) - 1), max_size=50)), width)


@given(st.integers(1, 63), st.integers(0, 20), st.binary(max_size=8))
def test_what_stands_behind_the_fields_is_ignored(width, count, behind):
    values = list(range(count)) if width >= 5 else [0] * count
    packed = np.frombuffer(slow.pack_fields(values, width) + behind, np.uint8)
    assert bits.unpack(packed, width, count).tolist() == values


@given(st.integers(1, 63), st.integers(1, 20))
def test_a_buffer_that_is_too_short_is_refused(width, count):
    with pytest.raises(ValueError, match=f"{count} fields of {width} bits"):
        bits.unpack(np.zeros(bits.packed_bytes(count, width) - 1, np.uint8), width, count)


@pytest.mark.parametrize("width", [-1, 64, 100])
def test_widths_out_of_range_are_refused(width):
    for call in (
        lambda: bits.pack(np.zeros(1, np.uint64), width),
        lambda: bits.unpack(np.zeros(100, np.uint8), width, 1),
    ):
        with pytest.raises(ValueError, match=r"width must be 0 to 63"):
            call()


def test_strided_and_read_only_arrays_are_read():
    values = np.arange(20, dtype=np.uint64)
    values.setflags(write=False)
    assert bits.pack(values[::2], 7).tobytes() == slow.pack_fields(values[::2].tolist(), 7)
    packed = np.repeat(bits.pack(values, 7), 2)[::2]
    assert bits.unpack(packed, 7, 20).tolist() == values.tolist()


def test_the_examples_in_the_docstring():
    result = doctest.testmod(bits)
    assert result.attempted >= 2 and result.failed == 0
