import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgc_horovod import Codec
from hgc_horovod.core import wire
from hgc_horovod.core.feedback import Feedback

from .samples import BITS, EPS, gaussian, hybrid, tensors

FLAGS = (False, True)
RULES = [
    {"momentum": m, "nesterov": nesterov, "masking": masking, "clip": clip, "feedback": keep}
    for m, nesterov, masking, clip, keep in product((0, 0.9), FLAGS, FLAGS, (None, 2), FLAGS)
    if m or not (nesterov or masking)
]


def transcribe(
    rule: Feedback, world_size: int, weight_decay: float, steps: list
) -> tuple[np.ndarray, np.ndarray]:
    """Residual and momentum after steps of (gradient, weight, decoded, sent): the docstring's formulas."""
    e = u = np.zeros(steps[0][0].size)
    for gradient, weight, decoded, sent in steps:
        g = gradient.astype(np.float64)
        if rule.clip is not None:
            g = g * min(1.0, rule.clip * world_size**-0.5 / math.sqrt(math.fsum(g * g)))
        g = g + weight_decay * weight.astype(np.float64)
        if not rule.momentum:
            v = e + g
        elif rule.nesterov:
            u = rule.momentum * u + g
            v = e + (g + rule.momentum * u)
        else:
            u = rule.momentum * u + g
            v = e + u
        e = v - decoded if rule.keep else np.zeros_like(v)
        if rule.masking:
            u = np.where(np.isin(np.arange(v.size), sent), 0.0, u)
    return e, u


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: " ".join(f"{k}={v}" for k, v in rule.items() if v))
@pytest.mark.parametrize(("bits", "density"), [(1, 0.1), (3, 0.1), (32, 0.1), (16, 1.0), (4, 1.0)])
def test_several_steps_by_the_formulas(rule, bits, density):
    n, world_size, weight_decay = 60, 4, 0.01
    codec = Codec(hybrid(density, bits, **rule), n, world_size=world_size)
    steps = []
    for step in range(8):
        gradient, weight = gaussian(n, seed=step), gaussian(n, seed=100 + step)
        scale = np.float32((1, 1000)[step % 2])  # of the loss
        payload = codec.encode(scale * gradient, weight, weight_decay, factor=1 / float(scale))
        decoded, sent = codec.decode_sum([payload]).astype(np.float64), wire.unpack(payload)[1]
        steps.append((gradient, weight, decoded, sent))
        residual, momentum = transcribe(codec.method.feedback, world_size, weight_decay, steps)
        assert codec.residual.dtype == np.float32
        assert codec.residual == pytest.approx(residual, rel=1e-5, abs=1e-5)
        if rule["momentum"]:
            assert codec.momentum == pytest.approx(momentum, rel=1e-5, abs=1e-5)
        else:
            assert codec.momentum is None
    assert codec.step == 8


@settings(max_examples=300)
@given(st.integers(1, 40), st.floats(0.02, 1), st.sampled_from(BITS), st.data())
def test_what_was_not_sent_is_kept(n, density, bits, data):
    codec = Codec(hybrid(density, bits), n)
    for gradient in data.draw(tensors(2 * n, 2 * n, limit=1e37)).reshape(2, n):
        before = codec.residual.copy()
        payload = codec.encode(gradient)
        decoded = codec.decode_sum([payload])
        assert payload.size == codec.method.payload_bytes(n)
        # What encode subtracted is exactly what a receiver decodes ...
        assert np.array_equal((before + gradient) - decoded, codec.residual)
        # ... so nothing is lost but the rounding of one sum and one difference.
        wanted = before.astype(np.float64) + gradient
        got = decoded.astype(np.float64) + codec.residual
        assert (np.abs(wanted - got) <= EPS * (np.abs(wanted) + np.abs(codec.residual)) * 1.001).all()


@given(tensors(5, 5, limit=1e37), tensors(5, 5, limit=1e37), st.sampled_from(BITS))
def test_without_feedback_nothing_is_kept(first, second, bits):
    codec = Codec(hybrid(0.4, bits, feedback=False), 5)
    payloads = [codec.encode(first), codec.encode(second)]
    assert not codec.residual.any()
    fresh = Codec(hybrid(0.4, bits, feedback=False), 5)
    assert payloads[1].tobytes() == fresh.encode(second).tobytes()


@pytest.mark.parametrize("bits", [1, 2, 4, 16, 32])
def test_a_steady_gradient_arrives_in_the_end(bits):
    n, steps = 100, 400
    codec, gradient = Codec(hybrid(0.05, bits), n), gaussian(n)
    total = sum(codec.decode_sum([codec.encode(gradient)]).astype(np.float64) for _ in range(steps))
    assert total + codec.residual == pytest.approx(steps * gradient.astype(np.float64), rel=1e-4, abs=1e-3)
    assert np.abs(codec.residual).max() < steps * np.abs(gradient).max() / 4


@given(
    tensors(1, 30, limit=1e18), st.floats(1e-6, 1e6), st.integers(1, 64), st.just(1.0) | st.floats(1e-9, 1e9)
)
def test_the_multiplier_by_its_formula(gradient, clip, world_size, factor):
    multiplier = Feedback(clip=clip).multiplier(gradient, world_size, factor)
    norm = math.sqrt(math.fsum((factor * v) ** 2 for v in gradient.tolist()))
    wanted = factor * min(1.0, clip * world_size**-0.5 / norm) if norm else factor
    assert isinstance(multiplier, np.float32)
    assert float(multiplier) == pytest.approx(wanted, rel=1e-6)


def test_the_world_size_lowers_the_limit():
    gradient = np.array([0.6, 0.8], np.float32)  # of norm 1
    multipliers = [Feedback(clip=1.5).multiplier(gradient, world_size) for world_size in (1, 2, 4, 9)]
    assert multipliers == pytest.approx([1, 1, 0.75, 0.5], rel=1e-6)


@given(tensors(min_size=1))
def test_without_a_clip_the_multiplier_is_the_factor(gradient):
    assert Feedback().multiplier(gradient, 8) == 1
    assert Feedback().multiplier(gradient, 8, 1 / 3) == np.float32(1 / 3)


@given(st.floats(0.3, 0.99), st.booleans(), st.integers(0, 100))
def test_retreat_takes_advance_back(momentum, nesterov, seed):
    rule = Feedback(momentum=momentum, nesterov=nesterov)
    before, gradient = gaussian(50, seed), gaussian(50, seed + 1)
    after, applied = rule.advance(before, gradient)
    assert after.dtype == applied.dtype == np.float32
    assert rule.retreat(after, gradient) == pytest.approx(before, abs=1e-5)


def test_replacing_the_method_between_steps():
    codec = Codec(hybrid(0.1, 4), 50)
    codec.encode(gaussian(50))
    residual = codec.residual.copy()
    codec.method = hybrid(0.5, 2)
    payload = codec.encode(gaussian(50, seed=1))
    header, _, _ = wire.unpack(payload)
    assert (header.k, header.quantizer.bits) == (25, 2)
    wanted = residual + gaussian(50, seed=1) - codec.decode_sum([payload])
    assert codec.residual == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    ("bad", "name"),
    [({"momentum": m}, "momentum") for m in (1, 1.5, -0.1, math.nan, math.inf, "x", True, None)]
    + [({"clip": c}, "clip") for c in (0, -1, math.nan, math.inf, "x", True)]
    + [({"nesterov": True}, "nesterov")],
)
def test_bad_arguments_are_refused_by_name(bad, name):
    with pytest.raises(ValueError, match=name):
        Feedback(**bad)
