"""Dense bit fields: every native variant packs and adds as the reference does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.samples import LARGEST, TINY, gaussian, same_bits

from .pairs import REFERENCE, variants

SIZES = (0, 1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 2047, 2048, 2049, 4097, 10007)
WIDTHS = range(1, 9)


def codes_of(n: int, bits: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**bits, n).astype(np.uint8)


def assert_added_alike(
    packed: np.ndarray, bits: int, levels: np.ndarray, scales: np.ndarray, bucket: int, out: np.ndarray
) -> np.ndarray:
    expected = out.copy()
    REFERENCE.add_codes(packed, bits, levels, scales, bucket, expected)
    for kernels in variants():
        mine = np.concatenate([out, np.full(9, 7, np.float32)])  # with what must not be touched behind it
        kernels.add_codes(packed, bits, levels, scales, bucket, mine[: out.size])
        assert same_bits(mine[: out.size], expected), (kernels.path, kernels.threads)
        assert (mine[out.size :] == 7).all()
    return expected


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("n", SIZES)
def test_packing(n, bits):
    for codes in (codes_of(n, bits), np.full(n, 2**bits - 1, np.uint8), codes_of(3 * n, bits)[::3]):
        expected = REFERENCE.pack_codes(codes, bits)
        assert expected.size == (n * bits + 7) // 8
        for kernels in variants():
            assert same_bits(kernels.pack_codes(codes, bits), expected), (kernels.path, kernels.threads)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("n", SIZES)
def test_adding(n, bits):
    codes = codes_of(n, bits)
    packed, levels = REFERENCE.pack_codes(codes, bits), gaussian(2**bits, 1)
    for bucket in (1, 3, 512, n + 5):
        scales, out = gaussian(-(-n // bucket), 2), gaussian(n, 3)
        total = assert_added_alike(packed, bits, levels, scales, bucket, out)
        expected = out + scales[np.arange(n) // bucket].astype(np.float64) * levels[codes]
        assert np.allclose(total, expected, rtol=1e-5, atol=1e-5)


def test_bits_behind_the_last_code_are_ignored():
    packed, out = np.full(1, 255, np.uint8), np.zeros(1, np.float32)
    total = assert_added_alike(packed, 3, np.arange(8, dtype=np.float32), np.ones(1, np.float32), 1, out)
    assert total == 7


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
@given(st.data(), st.integers(1, 8), st.integers(0, 70), st.integers(1, 80))
def test_adding_values_of_any_size(data, bits, n, bucket):
    numbers = st.sampled_from([0.0, -0.0, TINY, -1.0, 3.0, 1e30, LARGEST]) | st.floats(
        width=32, allow_nan=False
    )
    seed = data.draw(st.integers(0, 9))
    packed = REFERENCE.pack_codes(codes_of(n, bits, seed), bits)
    levels, scales, out = (
        np.array(data.draw(st.lists(numbers, min_size=size, max_size=size)), np.float32)
        for size in (2**bits, -(-n // bucket), n)
    )
    assert_added_alike(packed, bits, levels, scales, bucket, out)


@pytest.mark.parametrize("bucket", [2**50, 2**63 - 1, 2**63, 2**64, 2**64 + 1])
def test_a_bucket_far_larger_than_the_tensor(bucket):
    """It holds all entries, or is refused as a number that no kernel can take: the same in all of them."""
    ones, results = np.ones(4, np.float32), set()
    for kernels in (REFERENCE, *variants(threads=(1,))):
        out = ones.copy()
        try:
            kernels.add_codes(np.zeros(1, np.uint8), 2, ones, ones[:1], bucket, out)
            assert out.tolist() == [2] * 4
            results.add("added")
        except ValueError as error:
            assert "bucket" in str(error) and same_bits(out, ones)
            results.add(str(error))
    assert len(results) == 1


def test_the_reference_and_native_kernels_refuse_the_same_arguments():
    n, bits = 100, 3
    good = {
        "packed": np.zeros(38, np.uint8),
        "bits": bits,
        "levels": np.zeros(8, np.float32),
        "scales": np.zeros(10, np.float32),
        "bucket": 10,
        "out": np.zeros(n, np.float32),
    }
    bad = [
        *[("bits", value) for value in (0, 9, -1, 2.0, True, "3", None, 2**64 + 3)],
        *[("bucket", value) for value in (0, -1, 2.5, True, None)],
        *[
            ("packed", value)
            for value in (np.zeros(37, np.uint8), np.zeros(39, np.uint8), np.zeros(38, np.int8))
        ],
        *[("levels", value) for value in (np.zeros(7, np.float32), np.zeros(9, np.float32), np.zeros(8))],
        *[("scales", value) for value in (np.zeros(9, np.float32), np.zeros(11, np.float32), np.zeros(10))],
        *[("out", value) for value in (np.zeros(100), np.zeros((1, 100), np.float32))],
        ("levels", np.zeros(16, np.float32)[::2]),
        ("packed", np.zeros(76, np.uint8)[::2]),
        ("out", np.zeros(200, np.float32)[::2]),
        ("out", np.zeros(50, np.float32).repeat(2)[::-1]),
    ]
    for kernels in (REFERENCE, *variants(threads=(1,))):
        for name, value in bad:
            arguments = {**good, name: value}
            with pytest.raises(ValueError, match=name):
                kernels.add_codes(*arguments.values())
            if isinstance(value, np.ndarray):
                assert not value.any()
        kernels.add_codes(*good.values())


def test_an_output_of_codes_that_must_not_be_written():
    ones = np.ones(4, np.float32)
    for kernels in (REFERENCE, *variants(threads=(1,))):
        out = np.zeros(4, np.float32)
        out.flags.writeable = False
        with pytest.raises(ValueError, match=r"out.*read-only"):
            kernels.add_codes(np.zeros(1, np.uint8), 2, ones, ones[:1], 4, out)
        assert not out.any()


@pytest.mark.parametrize("bits", [0, 9, -1, 1.5, True, None])
def test_widths_that_packing_refuses(bits):
    for kernels in (REFERENCE, *variants(threads=(1,))):
        with pytest.raises(ValueError, match="bits must be a whole number"):
            kernels.pack_codes(np.zeros(9, np.uint8), bits)
