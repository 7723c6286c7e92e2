import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgc_horovod.core import quantize
from hgc_horovod.core.quantize import BFloat16, Float32, Geometric, SignMean, for_bits

from . import slow
from .samples import BITS, EPS, LARGEST, TINY, gaussian, same_bits, tensors

GEOMETRIC = range(2, 9)
HOSTILE = {
    "nothing": [],
    "one": [-3.0],
    "one denormal": [TINY],
    "one largest": [-LARGEST],
    "all equal": [0.1] * 7,
    "all largest": [LARGEST, -LARGEST] * 50,
    "all denormal": [TINY, -TINY, TINY],
    "whole range": [TINY, -1.0, LARGEST],
    "range of 4**2": [1.0, -4.0, 16.0, 3.9999998, 15.999999],
    "just above 4**2": [1.0, 16.000002, -4.0],
    "enormous outlier": [1e-3, -2e-3, 1.5e-3, 1e30],
    "powers of two": [2.0**e for e in range(-149, 128)],
    "denormal grid": [k * TINY for k in range(1, 300)],
}


def survivors(tensor: np.ndarray, bits: int) -> np.ndarray:
    """What reaches a quantizer: zeros only where it holds them."""
    return tensor if for_bits(bits).holds_zero else tensor[tensor != 0]


def check(values: np.ndarray, bits: int) -> np.ndarray:
    """Everything that holds for any values, and what they decode to."""
    quantizer = for_bits(bits)
    codes, scales = quantizer.quantize(values)
    decoded = quantizer.dequantize(codes, scales)
    assert codes.dtype == np.uint64 and scales.dtype == decoded.dtype == np.float32
    assert codes.shape == decoded.shape == values.shape and scales.shape == (quantizer.scale_count,)
    assert all(c >> bits == 0 for c in codes.tolist())
    assert np.isfinite(decoded).all() and np.isfinite(scales).all()
    assert np.array_equal(np.signbit(decoded), np.signbit(values))
    exact, result = values.astype(np.float64), decoded.astype(np.float64)
    if bits == 1:
        assert np.sum((exact - result) ** 2) <= np.sum(exact**2) * (1 + 1e-6)
    else:
        # Denormal levels are rounded to whole multiples of the smallest one.
        slack = TINY if bits in GEOMETRIC else 0.0
        assert (np.abs(exact - result) <= np.abs(exact) + slack).all()
    vanished = (decoded == 0) & (values != 0)
    assert (np.abs(values[vanished]) <= 2.0**-134).all() if bits == 16 else not vanished.any()
    return decoded


@pytest.mark.parametrize("bits", BITS)
@given(tensor=tensors())
def test_codes_scales_and_values_by_an_independent_transcription(bits, tensor):
    values = survivors(tensor, bits)
    decoded = check(values, bits)
    codes, scales = for_bits(bits).quantize(values)
    slow_codes, slow_scales = slow.quantize(values.tolist(), bits)
    assert codes.tolist() == slow_codes
    assert scales.tolist() == slow_scales
    patterns = tuple(slow.float_bits(s) for s in slow_scales)
    parts = slow.Parts(1, for_bits(bits).wire_id, bits, 0, 0, patterns, (), tuple(slow_codes))
    assert same_bits(decoded, np.array(slow.values(parts), np.float32))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_magnitudes(bits, case):
    values = np.array(HOSTILE[case], np.float32)
    check(values, bits)
    assert for_bits(bits).quantize(values)[0].tolist() == slow.quantize(values.tolist(), bits)[0]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("value", [1.0, -0.1, TINY * 2**20, LARGEST])
def test_equal_magnitudes_come_back(bits, value):
    values = np.array([value, -value, value], np.float32)
    tolerance = 2.0**-8 if bits == 16 else 2 * EPS if bits < 16 else 0
    assert check(values, bits) == pytest.approx(values, rel=tolerance)


def test_the_error_falls_with_the_bits():
    values = gaussian(100_000)
    values = values[np.abs(values) > 2.5]  # what a density of 1 % keeps
    errors = [float(np.sum((values - check(values, bits)) ** 2) / np.sum(values**2)) for bits in BITS]
    assert errors[:8] == sorted(errors[:8], reverse=True)
    assert all(e <= most for e, most in zip(errors, [0.03, 0.02, 0.01, 0.002], strict=False))
    assert errors[-2] <= 4**-8 and errors[-1] == 0


def test_float32_is_the_value_itself():
    values = np.array([0.0, -0.0, 1.0, -1.5, TINY, LARGEST], np.float32)
    assert Float32().quantize(values)[0].tolist() == [slow.float_bits(v) for v in values.tolist()]
    assert same_bits(check(values, 32), values)


def test_bfloat16_rounds_to_nearest_even_at_every_exponent():
    lower = (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)
    patterns = [
        s << 31 | e << 23 | m << 16 | low
        for s in (0, 1)
        for e in range(255)
        for m in (0, 1, 2, 127)
        for low in lower
    ]
    values = np.array(patterns, np.uint32).view(np.float32)
    assert BFloat16().quantize(values)[0].tolist() == [slow.bfloat16(v) for v in values.tolist()]


def test_bfloat16_keeps_every_value_of_its_own_and_never_becomes_infinite():
    codes = np.arange(2**16, dtype=np.uint64)
    own = codes[(codes & 0x7F80) != 0x7F80]
    assert np.array_equal(BFloat16().quantize(BFloat16().dequantize(own, np.zeros(0, np.float32)))[0], own)
    near_infinity = np.array([LARGEST, -LARGEST, 3.3961776e38], np.float32)
    assert BFloat16().quantize(near_infinity)[0].tolist() == [0x7F7F, 0xFF7F, 0x7F7F]


@given(tensors(min_size=1), st.randoms(use_true_random=False))
def test_sign_mean_is_the_mean_in_any_order(tensor, random):
    values = survivors(tensor, 1)
    codes, scales = SignMean().quantize(values)
    order = list(range(values.size))
    random.shuffle(order)
    shuffled_codes, shuffled_scales = SignMean().quantize(values[order])
    assert same_bits(scales, shuffled_scales) and np.array_equal(codes[order], shuffled_codes)
    mean = math.fsum(np.abs(values.astype(np.float64))) / max(values.size, 1)
    assert abs(float(scales[0]) - mean) <= 1e-6 * mean + TINY / 2


@pytest.mark.parametrize("n", [1000, 100_000])
def test_sign_mean_of_many(n):
    values = gaussian(n)
    mean = math.fsum(np.abs(values.astype(np.float64))) / n
    assert float(SignMean().quantize(values)[1][0]) == pytest.approx(mean, rel=1e-6)


@given(st.floats(TINY, LARGEST, width=32), st.floats(TINY, LARGEST, width=32), st.integers(2, 8))
def test_the_nodes_ascend_from_lo_to_hi(a, b, bits):
    lo, hi = sorted([a, b])
    nodes = quantize.geometric_nodes(np.array([lo, hi], np.float32), bits)
    assert nodes.dtype == np.float32 and nodes.shape == (2**bits + 1,)
    assert nodes[0] == lo and nodes[-1] == hi and (np.diff(nodes) >= 0).all()
    assert nodes.tolist() == slow.grid(lo, hi, bits)
    ideal = [lo * (hi / lo) ** (i / 2**bits) for i in range(2**bits + 1)]
    assert nodes.tolist() == pytest.approx(ideal, rel=1e-6, abs=TINY)


@pytest.mark.parametrize("bits", GEOMETRIC)
def test_the_range_ends_at_the_cap(bits):
    levels = 2 ** (bits - 1)
    lo = 2.0**-149 if bits > 7 else 1e-38
    hi = min(lo * 4.0**levels * 1.5, LARGEST)
    scales = for_bits(bits).quantize(np.array([lo, hi], np.float32))[1]
    assert float(scales[0]) == float(np.float32(lo))
    assert float(scales[1]) == min(float(np.float32(hi)), float(np.float32(lo)) * 4.0**levels)


@pytest.mark.parametrize("bits", [1, 2, 8])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0])
def test_scales_that_no_encoder_writes_are_refused(bits, bad):
    quantizer = for_bits(bits)
    one, none = np.zeros(1, np.uint64), np.zeros(0, np.uint64)
    for position in range(quantizer.scale_count):
        scales = np.ones(quantizer.scale_count, np.float32)
        scales[position] = bad
        with pytest.raises(ValueError, match="scales"):
            quantizer.dequantize(one, scales)
    with pytest.raises(ValueError, match="scales"):
        quantizer.dequantize(none, np.ones(quantizer.scale_count, np.float32))


def test_a_range_that_ends_before_it_begins_is_refused():
    with pytest.raises(ValueError, match="scales"):
        Geometric(4).dequantize(np.zeros(1, np.uint64), np.array([2, 1], np.float32))


@pytest.mark.parametrize(
    ("quantizer", "code"),
    [(Float32(), 0x7F800000), (Float32(), 0xFFC00000), (BFloat16(), 0x7F80), (BFloat16(), 0xFFC0)],
)
def test_codes_of_infinities_and_nans_are_refused(quantizer, code):
    with pytest.raises(ValueError, match="finite"):
        quantizer.dequantize(np.array([code], np.uint64), np.zeros(0, np.float32))


def test_one_quantizer_for_each_number_of_bits():
    assert [for_bits(b).bits for b in BITS] == list(BITS)
    kinds = [type(for_bits(b)) for b in (1, 2, 8, 16, 32)]
    assert kinds == [SignMean, Geometric, Geometric, BFloat16, Float32]


@pytest.mark.parametrize(
    ("kind", "bits"),
    [
        (Float32, 31),
        (BFloat16, 32),
        (SignMean, 2),
        (Geometric, 1),
        (Geometric, 9),
        (Geometric, 4.0),
        (Geometric, True),
    ],
)
def test_a_quantizer_refuses_bits_that_are_not_its_own(kind, bits):
    with pytest.raises(ValueError, match="bits"):
        kind(bits=bits)
