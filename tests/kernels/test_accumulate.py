"""A step that is taken up without a choice of entries: the native kernels do as the reference does."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from hgc_horovod.core.feedback import Feedback
from hgc_horovod.kernels import Decay, Kernels, State
from tests.core.samples import LARGEST, MOMENTA, gaussian, name

from .pairs import DTYPES, REFERENCE, Step, as_dtype, variants
from .test_hostile import TENSORS

N = 6151
RULES = [
    {**momentum, **more}
    for momentum in MOMENTA
    for more in ({}, {"keep": False}, {"clip": 2.0}, {"clip": 1e-3, "keep": False})
]


def bytes_of(array: np.ndarray | None) -> bytes | None:
    return None if array is None else array.tobytes()


def outcomes(kernels: Kernels, rule: dict, steps: Iterable[Step]) -> list[tuple]:
    """What each step gives and leaves behind."""
    steps = list(steps)
    feedback, found = Feedback(**rule), []
    state = State(np.zeros(steps[0].gradient.size, np.float32))
    for step in steps:
        decay = None if step.weight is None else Decay(step.weight, step.weight_decay)
        given = step.gradient.copy()
        with np.errstate(all="ignore"):
            got = kernels.accumulate(feedback, state, step.gradient, decay, 4, step.factor)
        assert given.tobytes() == step.gradient.tobytes()
        kept = bytes_of(state.residual), bytes_of(state.momentum)
        if got is None:
            found.append((None, *kept))
            continue
        assert (got.total is state.residual) == feedback.keep and got.total.dtype == np.float32
        before = got.before and tuple(map(bytes_of, got.before))
        found.append((got.total.tobytes(), np.float32(got.multiplier).tobytes(), before, *kept))
        if feedback.keep:  # what a method does with it
            got.total[1::3] = 0
    return found


def assert_alike(rule: dict, steps: Iterable[Step]) -> list[tuple]:
    steps = list(steps)
    expected = outcomes(REFERENCE, rule, steps)
    for kernels in variants():
        for number, (mine, theirs) in enumerate(zip(outcomes(kernels, rule, steps), expected, strict=True)):
            assert mine == theirs, (kernels.path, kernels.threads, number)
    return expected


@pytest.mark.parametrize("rule", RULES, ids=name)
@pytest.mark.parametrize("n", [0, 1, 63, 2048, 2049, N])
def test_rules_and_sizes(n, rule):
    steps = [Step(gaussian(n, seed), gaussian(n, 9), 0.01, 0.5) for seed in range(4)]
    assert_alike(rule, [*steps, Step(gaussian(n, 5))])


@pytest.mark.parametrize("dtype", DTYPES.keys() - {"float64"})
def test_types(dtype):
    steps = [
        Step(as_dtype(gaussian(N, seed), dtype), as_dtype(gaussian(N, 9), dtype), 0.1) for seed in range(3)
    ]
    for rule in RULES:
        assert_alike(rule, steps)


@pytest.mark.parametrize("case", TENSORS)
def test_hostile_tensors(case):
    gradient = TENSORS[case]()
    steps = [Step(gradient), Step((-0.5 * gradient).astype(np.float32)), Step(gradient)]
    for rule in RULES:
        assert_alike(rule, steps)


@pytest.mark.parametrize("rule", RULES, ids=name)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -LARGEST])
@pytest.mark.parametrize("place", [0, 2048, 4095, N - 1])
def test_the_state_after_a_refused_step(place, bad, rule):
    broken, large = gaussian(N, 1), gaussian(N, 2)
    broken[place], large[place] = bad, -LARGEST / 1.05
    steps = [Step(gaussian(N)), Step(broken), Step(large), Step(large), Step(broken), Step(gaussian(N, 3))]
    found = assert_alike(rule, [Step(broken), *steps])
    if not np.isfinite(bad):
        assert found[0][0] is None and found[2][0] is None and found[1][0] is not None
    weight = gaussian(N, 4)
    weight[place] = bad
    assert_alike(rule, [Step(gaussian(N), weight, 4.0), Step(gaussian(N, 1), weight, 4.0), steps[0]])


@pytest.mark.parametrize("rule", RULES, ids=name)
@pytest.mark.parametrize("spoiled", [None, 0, 4321])
def test_an_exploding_step_leaves_what_was_kept(spoiled, rule):
    huge = gaussian(N, 2, 1e8)
    if spoiled is not None:
        huge[spoiled] = np.nan
    found = assert_alike(rule, [Step(gaussian(N)), Step(gaussian(N, 1)), Step(huge), Step(gaussian(N, 3))])
    if spoiled is not None:
        assert found[2][0] is None
        if "clip" in rule or not rule.get("keep", True):
            return
        expected = np.frombuffer(found[1][-2], np.float32).copy()
        expected[1::3] = 0
        assert found[2][1] == expected.tobytes() and found[2][2] == found[1][-1]
