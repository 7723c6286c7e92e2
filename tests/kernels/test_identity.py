"""Every native variant gives the reference's payloads and leaves its state, bit for bit, step after step."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgc_horovod import Codec
from hgc_horovod.core import wire
from tests.core.samples import BITS, LARGEST, TINY, gaussian, hybrid, same_bits, tensors

from .pairs import DTYPES, REFERENCE, Step, as_dtype, assert_identical, variants

SIZES = (0, 1, 2, 7, 63, 64, 65, 129, 2047, 2048, 2049, 4097, 8191, 8192, 8193, 16384)
RULES = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "masking": {"momentum": 0.9, "masking": True},
    "nesterov-masking-clip": {"momentum": 0.5, "nesterov": True, "masking": True, "clip": 1.5},
    "clip": {"clip": 0.75},
    "a-clip-that-is-never-met": {"clip": 1e30},
    "no-feedback": {"feedback": False},
    "no-feedback-momentum-masking": {"feedback": False, "momentum": 0.9, "masking": True},
    "no-feedback-nesterov-clip": {"feedback": False, "momentum": 0.9, "nesterov": True, "clip": 1.0},
}
ONE_ENTRY = 1e-9
FACTORS = (2.0**-16, 1 / 3, 3.0, 1e30, 1e-42)  # the last one is a denormal


def steps_of(n: int, count: int = 3, scale: float = 1.0) -> list[Step]:
    return [Step(gaussian(n, seed, scale)) for seed in range(count)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("n", SIZES)
def test_every_size_and_rule(n, rule):
    at = SIZES.index(n) + 3 * list(RULES).index(rule)  # so that all bits and densities meet all rules
    for i in range(3):
        bits, density = BITS[(at + 3 * i) % len(BITS)], (ONE_ENTRY, 0.01, 0.1, 0.5, 1.0)[(at + i) % 5]
        assert_identical(hybrid(density, bits, **RULES[rule]), steps_of(n), world_size=1 + i)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("density", [ONE_ENTRY, 0.002, 0.05, 0.4, 0.75, 1.0])
def test_every_width_and_density(bits, density):
    for n in (1, 65, 5000):
        assert_identical(hybrid(density, bits), steps_of(n))


@pytest.mark.parametrize("rule", ["plain", "nesterov-masking-clip", "no-feedback"])
@pytest.mark.parametrize(("n", "bits"), [(100003, 4), (100003, 1), (100003, 16), (1_200_011, 3)])
def test_large_tensors(n, bits, rule):
    for density in (ONE_ENTRY, 0.01) if n > 10**6 else (0.001, 0.03, 1.0):
        count = 2 if n > 10**6 else 3
        assert_identical(hybrid(density, bits, **RULES[rule]), steps_of(n, count), threads=(1, 3))


@pytest.mark.parametrize("low_bits", [24, 25])
def test_fields_of_56_bits_and_more(low_bits):
    """Positions of so many low bits stand beside values of 32 bits."""
    gradient, method = np.zeros(2**low_bits, np.float32), hybrid(ONE_ENTRY, 32)
    gradient[[12345, -1]] = [1, -2]
    expected = Codec(method, gradient.size, kernels=REFERENCE).encode(gradient)
    assert wire.read_header(expected).field_bits == low_bits + 32
    for kernels in variants(threads=(2,)):
        codec = Codec(method, gradient.size, kernels=kernels)
        assert same_bits(codec.encode(gradient), expected)
        assert np.flatnonzero(codec.residual).tolist() == [12345]
        decoded = codec.decode_sum([expected])
        assert np.flatnonzero(decoded).tolist() == [gradient.size - 1] and decoded[-1] == -2


@pytest.mark.parametrize("weight", DTYPES)
@pytest.mark.parametrize("gradient", DTYPES)
def test_every_dtype_of_gradients_and_weights(gradient, weight):
    for n, rule in ((67, "nesterov-masking-clip"), (4099, "momentum"), (2050, "no-feedback"), (2500, "clip")):
        steps = [
            Step(
                as_dtype(gaussian(n, seed, 10.0 ** (seed - 2)), gradient),
                as_dtype(gaussian(n, 50 + seed), weight),
                (0.01, 0.0, -0.3, 1e-30)[seed],
            )
            for seed in range(4)
        ]
        assert_identical(hybrid(0.1, 4, **RULES[rule]), steps)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_number_of_a_narrow_dtype(dtype):
    """One tensor holds all finite numbers of the type, denormals included."""
    words = np.arange(2**16, dtype=np.uint16)
    values = words.view(np.float16) if dtype == "float16" else words.view(DTYPES[dtype])
    largest = 0x7C00 if dtype == "float16" else 0x7F80
    finite = values[(words & 0x7FFF) < largest]
    one = as_dtype(np.ones(finite.size, np.float32), dtype)
    for bits in (4, 32):
        assert_identical(hybrid(1.0, bits), [Step(finite), Step(one, finite, 0.125)], threads=(2,))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("factor", FACTORS)
def test_gradients_that_are_scaled(factor, rule):
    """The factor is another one in each step, and not kept from step to step."""
    for n, dtype in ((67, "float16"), (2500, "bfloat16"), (4099, "float32"), (4099, "float64")):
        scale = 1.0 if dtype == "float16" else min(1 / factor, 1e30)
        steps = [
            Step(as_dtype(gaussian(n, seed, scale), dtype), gaussian(n, 50 + seed), decay, used)
            for seed, (decay, used) in enumerate([(0, factor), (0.01, factor / 2), (0.01, 1.0), (0, factor)])
        ]
        for density, bits in ((0.1, 4), (1.0, 16)):
            assert_identical(hybrid(density, bits, **RULES[rule]), steps, world_size=3)


@pytest.mark.parametrize("factor", FACTORS)
def test_large_tensors_that_are_scaled(factor):
    steps = [Step(gaussian(100_003, seed, min(1 / factor, 1e30)), factor=factor) for seed in range(3)]
    for rule in ("plain", "nesterov-masking-clip"):
        assert_identical(hybrid(0.01, 4, **RULES[rule]), steps, world_size=2, threads=(1, 3))


@pytest.mark.parametrize("stride", [-1, 2, 3])
def test_gradients_and_weights_with_gaps(stride):
    gradient, weight = (gaussian(9000, seed)[::stride] for seed in range(2))
    assert_identical(hybrid(0.1, 4, momentum=0.9), [Step(gradient, weight, 0.1)] * 3)


@pytest.mark.parametrize("offset", [1, 2, 3, 4])
def test_gradients_and_weights_at_any_address(offset):
    def moved(values: np.ndarray) -> np.ndarray:
        memory = np.zeros(values.nbytes + offset, np.uint8)
        memory[offset:] = values.view(np.uint8)
        return memory[offset:].view(values.dtype)

    for dtype in ("float32", "float16"):
        gradient, weight = (moved(as_dtype(gaussian(4097, seed), dtype)) for seed in range(2))
        assert_identical(hybrid(0.1, 4, momentum=0.9, clip=1.0), [Step(gradient, weight, 0.1)] * 2)


@pytest.mark.parametrize("keep", [True, False])
def test_the_density_falls_during_a_warm_up(keep):
    method = hybrid(0.01, 16, warmup=[1.0, 0.25, 0.05], warmup_steps=3, feedback=keep, momentum=0.9)
    for n in (5000, 3):
        assert_identical(method, steps_of(n, 5))


@pytest.mark.parametrize("world_size", [1, 2, 3, 1000])
def test_clipping_in_worlds_of_every_size(world_size):
    for scale, factor in product((1e-38, 1e-3, 1.0, 1e30), (1.0, 1e-3, 7.0)):
        steps = [Step(gaussian(3001, seed, scale), factor=factor) for seed in range(2)]
        assert_identical(hybrid(0.1, 4, clip=1.0), steps, world_size)


small_rules = st.fixed_dictionaries(
    {
        "momentum": st.sampled_from([0.0, 0.5, 0.9]),
        "masking": st.booleans(),
        "clip": st.sampled_from([None, None, 1e-3, 1.0, 1e20]),
        "feedback": st.booleans(),
    }
)


@given(st.data(), small_rules, st.booleans(), st.sampled_from(BITS), st.floats(0.001, 1))
def test_small_tensors_of_any_values(data, rule, nesterov, bits, density):
    n = data.draw(st.integers(0, 150))
    limit = data.draw(st.sampled_from([2.0**-126, 1.0, 1e37]))
    steps = [Step(data.draw(tensors(n, n, limit))) for _ in range(3)]
    rule = {**rule, "nesterov": nesterov and rule["momentum"] > 0}
    assert_identical(hybrid(density, bits, **rule), steps, threads=(1,))


@given(st.data(), small_rules, st.sampled_from(BITS), st.sampled_from([0.0, 1e-4, 3.0]))
def test_small_tensors_that_may_overflow(data, rule, bits, weight_decay):
    n = data.draw(st.integers(1, 80))
    steps = [Step(data.draw(tensors(n, n)), data.draw(tensors(n, n)), weight_decay) for _ in range(3)]
    assert_identical(hybrid(0.2, bits, **rule), steps, threads=(1,))


@given(st.data(), small_rules, st.sampled_from(BITS), st.sampled_from([0.0, 3.0]))
def test_small_tensors_under_any_factor(data, rule, bits, weight_decay):
    n, factors = data.draw(st.integers(1, 80)), st.floats(TINY, LARGEST) | st.sampled_from([1.0, 2.0**-24])
    steps = [
        Step(data.draw(tensors(n, n)), data.draw(tensors(n, n, 1.0)), weight_decay, data.draw(factors))
        for _ in range(3)
    ]
    assert_identical(hybrid(0.2, bits, **rule), steps, world_size=2, threads=(1,))
