"""Tensors that are hard to choose from, or not finite: every native variant does as the reference does."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from hgc_horovod import Codec
from tests.core.samples import LARGEST, TINY, gaussian, hybrid, same_bits

from .pairs import REFERENCE, Step, assert_identical, encoded, sampled, variants

N = 6151  # on three threads the borders lie at 4096, and on two as well
BORDER = 4096


def signed(magnitudes: np.ndarray) -> np.ndarray:
    return (magnitudes * np.where(np.arange(magnitudes.size) % 3, 1, -1)).astype(np.float32)


def zeros_but(values: dict[int, float]) -> np.ndarray:
    out = np.zeros(N, np.float32)
    for at, value in values.items():
        out[at] = value
    return out


def ties_across_borders() -> np.ndarray:
    """More ties at the threshold than fit stand on both sides of the threads' borders."""
    out = gaussian(N, 1, 0.01)
    out[2048 - 40 : 2048 + 40] = out[BORDER - 40 : BORDER + 40] = 1
    out[BORDER - 3 : BORDER + 3] = -1
    out[::1000] = 5
    return out


def scales_per_block() -> np.ndarray:
    return gaussian(N, 2) * np.where(np.arange(N) // 64 % 2, 1e-6, 1e6).astype(np.float32)


TENSORS: dict[str, Callable[[], np.ndarray]] = {
    "zeros": lambda: np.zeros(N, np.float32),
    "negative zeros": lambda: -np.zeros(N, np.float32),
    "negative zeros among others": lambda: np.where(np.arange(N) % 2, gaussian(N), np.float32(-0.0)),
    "smallest denormals": lambda: signed(np.full(N, TINY)),
    "denormals": lambda: signed(np.arange(N) * TINY),
    "denormals and zeros": lambda: signed((np.arange(N) % 5) * TINY),
    "largest": lambda: signed(np.full(N, LARGEST)),
    "all equal": lambda: signed(np.full(N, 0.3)),
    "two magnitudes": lambda: signed(np.where(np.arange(N) % 7, 0.25, 0.5)),
    "few magnitudes": lambda: signed(np.arange(N) % 16 + 1.0),
    "next to each other": lambda: signed((np.arange(N, dtype=np.uint32) % 100 + 0x3F800000).view(np.float32)),
    "ties across borders": ties_across_borders,
    "one huge": lambda: np.where(np.arange(N) == 3000, 1e38, gaussian(N)).astype(np.float32),
    "one at the end": lambda: zeros_but({N - 1: -1e-20}),
    "one at the start": lambda: zeros_but({0: 1e20}),
    "few": lambda: zeros_but({5: 1, 63: -2, 64: 3, 2047: -4, 2048: 5, 4095: TINY, 4096: -7, N - 1: 8}),
    "scales per block": scales_per_block,
    "whole range": lambda: signed(2.0 ** np.linspace(-149, 127, N)),
    "ascending": lambda: signed(np.linspace(1, 2, N)),
    "descending": lambda: signed(np.linspace(2, 1, N)),
    "large first half": lambda: gaussian(N) * np.where(np.arange(N) < N // 2, 1e3, 1e-3).astype(np.float32),
    "large last thread": lambda: gaussian(N) * np.where(np.arange(N) < BORDER, 1e-3, 1e3).astype(np.float32),
}


@pytest.mark.parametrize("bits", [1, 2, 5, 6, 8, 16, 32])
@pytest.mark.parametrize("case", TENSORS)
def test_hostile_tensors(case, bits):
    gradient = TENSORS[case]()
    steps = [Step(gradient), Step((-0.5 * gradient).astype(np.float32)), Step(gradient)]
    for density, keep in ((1e-9, True), (0.01, True), (0.01, False), (0.35, True), (1.0, True), (1.0, False)):
        assert_identical(hybrid(density, bits, feedback=keep), steps, threads=(1, 3))


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("k", [1, 50, 1500])
def test_sorted_tensors_overflow_the_candidates_buffers(falling, k, keep):
    n = 70_001
    gradient = signed(np.linspace(1, 2, n))[:: -1 if falling else 1].copy()
    gradient[100:200] = gradient[-200:-100] = 1.5  # ties in the first and the last thread
    assert_identical(hybrid(k / n, 4, feedback=keep), [Step(gradient), Step(-gradient), Step(gradient)])


def rescanned(gradient: np.ndarray, k: int, bits: int = 4) -> int:
    """How many further passes the first encode takes, which must give the reference's bytes."""
    method = hybrid(k / gradient.size, bits)
    expected = encoded(REFERENCE, method, [Step(gradient), Step(gradient)])
    passes = set()
    for kernels in variants():
        codec = Codec(method, gradient.size, kernels=kernels)
        codec.encode(gradient)
        passes.add(kernels.rescans)
        assert kernels.encodes == 1
        assert encoded(kernels, method, [Step(gradient), Step(gradient)]) == expected
    assert len(passes) == 1  # the guess depends on the tensor alone
    return passes.pop()


def test_a_threshold_that_was_guessed_too_high_is_lowered_until_enough_are_found():
    n = 100_000
    gradient = gaussian(n)
    places = sampled(n)
    gradient[places] = np.linspace(100, 1000, places.size, dtype=np.float32)
    assert rescanned(gradient, 2000) >= 2


def test_few_entries_that_are_not_zero_where_the_guess_looks():
    n = 100_000
    gradient = np.zeros(n, np.float32)
    gradient[sampled(n)[:40]] = np.arange(1, 41)
    assert rescanned(gradient, 1000) >= 1
    assert rescanned(gradient, 1000, bits=32) >= 1


@pytest.mark.parametrize("falling", [1e-4, 1.0, 1e4])
def test_threads_that_find_very_different_magnitudes_in_a_second_pass(falling):
    """All buffers fill up in the second pass, which takes every entry that is not zero; what one thread then
    drops must not depend on another."""
    n = 100_000
    gradient = (np.abs(gaussian(n, 1)) + 1e-3).astype(np.float32)
    gradient[n // 2 :] *= np.float32(falling)
    places = sampled(n)
    gradient[places] = 0
    gradient[places[:24]] = 1e6
    assert rescanned(gradient, 500) >= 1


@pytest.mark.parametrize("n", [5000, 60_000, 70_000])
@pytest.mark.parametrize("scale", [1e-1, 1e-3, 1e-30, 1e3])
def test_a_step_whose_entries_are_far_from_those_of_the_step_before(n, scale):
    """The second gradient takes nearly all back that the first has left."""
    method, first = hybrid(500 / n, 32), gaussian(n)
    codec = Codec(method, n, kernels=REFERENCE)
    codec.encode(first)
    second = (np.float32(scale) * gaussian(n, 1) - codec.residual).astype(np.float32)
    assert_identical(method, [Step(first), Step(second), Step(first)])


def test_zeros_where_the_guess_looks_and_large_entries_elsewhere():
    n = 100_000
    gradient = gaussian(n)
    gradient[sampled(n)] = 0  # so that the guess is far too low, and the buffers overflow
    assert rescanned(gradient, 100) == 0


PLACES = {"first": 0, "block": 2048, "border": BORDER - 1, "middle": 3077, "last": N - 1}
BAD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "overflow": -LARGEST}
REFUSED_RULES = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "nesterov-masking": {"momentum": 0.9, "nesterov": True, "masking": True},
    "clip": {"clip": 2.0, "momentum": 0.9},
    "no-feedback-momentum": {"momentum": 0.9, "feedback": False},
}


@pytest.mark.parametrize("rule", REFUSED_RULES)
@pytest.mark.parametrize("where", [*PLACES, "all"])
@pytest.mark.parametrize("bad", BAD)
def test_the_state_after_a_refused_step(bad, where, rule):
    places = list(PLACES.values()) if where == "all" else [PLACES[where]]
    large, broken = gaussian(N, 0), gaussian(N, 1)
    large[places], broken[places] = -LARGEST / 1.05, BAD[bad]
    for density, bits in ((0.01, 4), (1.0, 16)):
        method = hybrid(density, bits, **REFUSED_RULES[rule])
        steps = [Step(broken), Step(gaussian(N, 2)), Step(broken), Step(gaussian(N, 3))]
        if bad == "overflow":
            steps = [Step(gaussian(N, 4)), *[Step(large)] * 4, Step(broken), Step(gaussian(N, 5))]
        outcomes = assert_identical(method, steps, threads=(1, 3))
        if bad != "overflow":
            assert [outcome.payload is None for outcome in outcomes] == [True, False, True, False]


@pytest.mark.parametrize("bad", [np.nan, np.inf, LARGEST])
def test_the_state_after_a_weight_that_is_not_finite(bad):
    for place, n in product((0, 70, -1), (130, N)):
        weight = gaussian(n, 7)
        weight[place] = bad
        good, broken = Step(gaussian(n), gaussian(n, 8), 0.1), Step(gaussian(n, 1), weight, 4.0)
        for rule in REFUSED_RULES.values():
            outcomes = assert_identical(hybrid(0.1, 4, **rule), [broken, good, broken, good], threads=(1, 3))
            assert [outcome.payload is None for outcome in outcomes] == [True, False, True, False]


def test_the_state_after_gradients_that_are_not_finite_once_they_are_scaled():
    good, huge = Step(gaussian(N), factor=1e-3), Step(gaussian(N, 1), gaussian(N, 2), 0.1, factor=LARGEST)
    for rule, (density, bits) in product(REFUSED_RULES.values(), ((0.01, 4), (1.0, 16))):
        outcomes = assert_identical(hybrid(density, bits, **rule), [huge, good, huge, good], threads=(1, 3))
        refused = "clip" not in rule  # which brings them back
        assert [outcome.payload is None for outcome in outcomes] == [refused, False, refused, False]


@pytest.mark.parametrize("keep", [True, False])
def test_a_residual_that_was_set_from_outside(keep):
    given, results = gaussian(3000, 1), []
    for kernels in (REFERENCE, *variants()):
        codec = Codec(hybrid(0.1, 4, feedback=keep), 3000, kernels=kernels)
        codec.residual = given
        codec.encode(gaussian(3000))
        results.append((codec.residual.copy(), codec.encode(gaussian(3000, 2))))
    for residual, payload in results[1:]:
        assert same_bits(residual, results[0][0]) and same_bits(payload, results[0][1])


@pytest.mark.parametrize("spoiled", [None, 0, 4_999, 4_321])
@pytest.mark.parametrize("scale", [1e3, 1e8, 1e30])
@pytest.mark.parametrize(
    "rule", [{}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "masking": True}]
)
@pytest.mark.parametrize("density", [0.01, 1.0])
def test_an_exploding_step_leaves_what_was_kept(rule, scale, spoiled, density):
    """Finite or not, a step whose gradient dwarfs what is kept can be taken back to the last bit."""
    momentum = {"momentum": 0.9, **rule} if rule else {}
    method = hybrid(density, 32 if density == 1 else 4, **momentum)
    usual, huge = (np.random.default_rng(9).standard_normal((4, 5_000)).astype(np.float32) for _ in range(2))
    huge *= np.float32(scale)
    if spoiled is not None:
        huge[2, spoiled] = np.nan
    steps = [Step(usual[0]), Step(usual[1]), Step(huge[2]), Step(usual[3])]
    outcomes = assert_identical(method, steps, threads=(1, 3))
    kept = {"residual": outcomes[1].residual, "momentum": outcomes[1].momentum}
    if density == 1 and not rule:
        return  # float32 of every entry: nothing is kept
    if spoiled is not None:
        assert outcomes[2].payload is None
        assert {"residual": outcomes[2].residual, "momentum": outcomes[2].momentum} == kept
    else:
        for kernels in [REFERENCE, *variants((1, 3))]:
            codec = Codec(method, 5_000, kernels=kernels)
            for step in steps[:3]:
                codec.encode(step.gradient)
            codec.undo(steps[2].gradient)
            assert codec.residual.tobytes() == kept["residual"] and codec.step == 2
            assert kept["momentum"] is None or codec.momentum.tobytes() == kept["momentum"]
            assert codec.encode(steps[2].gradient).tobytes() == outcomes[2].payload
