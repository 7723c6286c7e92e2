"""The codec's state: what errors leave alone, and what `undo` restores."""

import copy
import pickle
from itertools import product

import numpy as np
import pytest

from hgc_horovod import Codec, NonFiniteError, methods
from hgc_horovod.core import wire
from hgc_horovod.core.context import Peers
from hgc_horovod.kernels.reference import ReferenceKernels

from .samples import FLAGS, LARGEST, MOMENTA, gaussian, hybrid, name, same_bits, snapshot


def copies(codec: Codec) -> tuple:
    return codec.step, codec.residual.copy(), None if codec.momentum is None else codec.momentum.copy()


def assert_close(codec: Codec, before: tuple) -> None:
    """The state is as it was, to the rounding of sums of this size."""
    step, residual, momentum = before
    assert codec.step == step
    assert codec.residual == pytest.approx(residual, abs=1e-6, rel=1e-6)
    if momentum is None:
        assert codec.momentum is None
    else:
        assert codec.momentum == pytest.approx(momentum, abs=1e-6, rel=1e-6)


@pytest.mark.parametrize("rule", MOMENTA, ids=name)
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300, -1e39])
@pytest.mark.parametrize("first", FLAGS)
def test_a_gradient_that_is_not_finite_leaves_the_state_as_it_was(rule, clip, bad, first):
    codec = Codec(hybrid(0.1, 4, clip=clip, **rule), 50, name="layer1.weight")
    if not first:
        codec.encode(gaussian(50))
    gradient = gaussian(50, seed=1).astype(np.float64)
    gradient[17] = bad
    before = copies(codec)
    with pytest.raises(NonFiniteError, match=r"layer1\.weight"):
        codec.encode(gradient)
    with pytest.raises(NonFiniteError):
        codec.encode(gaussian(50), np.where(np.arange(50) == 3, bad, 1.0), 0.1)
    assert_close(codec, before)
    fresh = Codec(codec.method, 50)
    if not first:
        fresh.encode(gaussian(50))
    good, expected = (c.decode_sum([c.encode(gaussian(50, seed=2))]) for c in (codec, fresh))
    assert good == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("rule", MOMENTA, ids=name)
def test_entries_that_would_not_be_finite_keep_every_bit(rule):
    codec = Codec(hybrid(0.1, 4, **rule), 50)
    codec.encode(gaussian(50))
    gradient, before = gaussian(50, seed=1), copies(codec)
    bad = np.arange(50) % 3 == 0
    gradient[bad] = [np.nan, np.inf, -np.inf] * 5 + [np.nan, np.inf]
    with pytest.raises(NonFiniteError):
        codec.encode(gradient)
    for now, then in zip(copies(codec)[1:], before[1:], strict=True):
        assert then is None or same_bits(now[bad], then[bad])


@pytest.mark.parametrize("rule", MOMENTA, ids=name)
def test_a_residual_that_overflows_leaves_the_state_as_it_was(rule):
    codec = Codec(hybrid(0.01, 4, **rule), 50)
    half = np.full(50, LARGEST / 2.5, np.float32)
    codec.encode(half)
    before = copies(codec)
    with pytest.raises(NonFiniteError):
        for _ in range(2):  # with the momentum the very next step overflows, without it the one after
            codec.encode(half)
            before = copies(codec)
    assert_close(codec, before)
    codec.undo(half)
    assert codec.step == before[0] - 1


@pytest.mark.parametrize("rule", MOMENTA, ids=name)
@pytest.mark.parametrize(("clip", "weight_decay", "keep"), list(product([None, 2.0], [0.0, 0.01], FLAGS)))
@pytest.mark.parametrize(("density", "bits"), [(0.1, 1), (0.1, 4), (1.0, 16), (1.0, 2), (0.05, 32)])
def test_undo_restores_the_state(rule, clip, weight_decay, keep, density, bits):
    codec = Codec(hybrid(density, bits, clip=clip, feedback=keep, **rule), 50, world_size=2)
    weight = gaussian(50, seed=99)
    for step in range(4):
        before, momentum = codec.residual.copy(), codec.momentum
        momentum = np.zeros(50, np.float32) if momentum is None else momentum.copy()
        scale = (1.0, 3.0, 2.0**16, 1e-6)[step]  # of the loss
        gradient = gaussian(50, step, scale)
        codec.encode(gradient, weight, weight_decay, factor=1 / scale)
        codec.undo(gradient, weight, weight_decay)
        assert codec.step == step
        assert codec.residual == pytest.approx(before, abs=2e-6)
        assert codec.residual.dtype == np.float32
        if rule:
            assert codec.momentum == pytest.approx(momentum, abs=2e-6)
        codec.encode(gradient, weight, weight_decay, factor=1 / scale)
    assert codec.step == 4


def test_undo_takes_back_one_step_and_no_more():
    codec, gradient = Codec(hybrid(), 50, name="fc"), gaussian(50)
    with pytest.raises(ValueError, match="fc"):
        codec.undo(gradient)
    codec.encode(gradient)
    codec.undo(gradient)
    before = snapshot(codec)
    with pytest.raises(ValueError, match="fc"):
        codec.undo(gradient)
    assert snapshot(codec) == before


def test_undo_takes_back_what_was_clipped_before_the_world_changed():
    codec, gradient = Codec(hybrid(clip=1.0), 50, world_size=2), gaussian(50)
    codec.encode(gradient)
    codec.world_size = 32
    codec.undo(gradient)
    assert codec.residual == pytest.approx(np.zeros(50), abs=1e-6)


@pytest.mark.parametrize("rule", MOMENTA, ids=name)
@pytest.mark.parametrize(("clip", "keep"), list(product([None, 2.0], FLAGS)))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_gradient_of_a_scaled_loss_counts_as_the_gradient(rule, clip, keep, dtype):
    """A power of two changes no digit, so that payload and state are the same, bit for bit."""
    scaled, plain = (Codec(hybrid(clip=clip, feedback=keep, **rule), 50, world_size=2) for _ in range(2))
    for step, scale in enumerate((2**16, 1, 2**-9)):
        gradient, weight = gaussian(50, seed=step), gaussian(50, seed=99)
        expected = plain.encode(gradient, weight, 0.01)
        payload = scaled.encode((scale * gradient).astype(dtype), weight, 0.01, factor=1 / scale)
        assert same_bits(payload, expected) and snapshot(scaled) == snapshot(plain)
    for codec in (scaled, plain):
        codec.amend(gaussian(50, seed=7))  # in unscaled units
    assert snapshot(scaled) == snapshot(plain)


@pytest.mark.parametrize(("norm", "limited"), [(0.5, 0.5), (10.0, 1.0)])
def test_the_clip_limits_the_norm_of_what_was_scaled(norm, limited):
    for scale in (1e3, 1e-3):
        codec, gradient = Codec(hybrid(1.0, 32, clip=2.0), 50, world_size=4), gaussian(50)
        gradient *= np.float32(norm * scale / np.linalg.norm(gradient))
        sent = codec.decode_sum([codec.encode(gradient, factor=1 / scale)])
        assert np.linalg.norm(sent) == pytest.approx(limited, rel=1e-5)


@pytest.mark.parametrize(
    "bad", [0, -1, -0.0, np.nan, np.inf, -np.inf, 1e-60, 1e39, 10**400, np.float32(0), "x", None, 1j]
)
def test_factors_that_float32_does_not_hold_are_refused(bad):
    codec = Codec(hybrid(clip=1.0), 50, name="fc")
    before = snapshot(codec)
    with pytest.raises(ValueError, match="factor of 'fc' must be"):
        codec.encode(gaussian(50), factor=bad)
    assert snapshot(codec) == before


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
def test_factors_of_any_type_of_numbers(kind):
    """A product with a float32 would be one, and the clip another."""
    codecs = [Codec(hybrid(clip=1.0), 50, kernels=kernels) for kernels in (ReferenceKernels(), None, None)]
    factors = kind(0.3), kind(0.3), float(kind(0.3))
    payloads = [c.encode(gaussian(50), factor=f) for c, f in zip(codecs, factors, strict=True)]
    assert len({payload.tobytes() for payload in payloads}) == len({snapshot(c) for c in codecs}) == 1


@pytest.mark.parametrize("rule", MOMENTA, ids=name)
def test_what_overflows_once_it_is_scaled_is_refused(rule):
    codec = Codec(hybrid(0.1, 4, **rule), 50)
    codec.encode(gaussian(50))
    before = copies(codec)
    with pytest.raises(NonFiniteError):
        codec.encode(np.full(50, 1e20, np.float32), factor=1e20)
    assert_close(codec, before)


def test_undo_sets_the_warm_up_back():
    codec, gradient = Codec(hybrid(0.1, warmup=[0.5], warmup_steps=1), 100), gaussian(100)
    assert wire.read_header(codec.encode(gradient)).k == 50
    codec.undo(gradient)
    assert [wire.read_header(codec.encode(gradient)).k for _ in range(2)] == [50, 10]


@pytest.mark.parametrize("rule", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}], ids=name)
@pytest.mark.parametrize("keep", FLAGS)
def test_a_correction_afterwards_counts_as_part_of_the_gradient(rule, keep):
    whole, parts = (Codec(hybrid(1.0, 32, feedback=keep, **rule), 50) for _ in range(2))
    gradient, more, later = gaussian(50), gaussian(50, seed=1), gaussian(50, seed=2)
    sent = [c.decode_sum([c.encode(g)]) for c, g in ((whole, gradient + more), (parts, gradient))]
    parts.amend(more)
    then = [c.decode_sum([c.encode(later)]) for c in (whole, parts)]
    if keep:
        assert sent[0] + then[0] == pytest.approx(sent[1] + then[1], abs=1e-5)
    if rule:
        assert whole.momentum == pytest.approx(parts.momentum, abs=1e-5)
    assert parts.step == 2


def test_feedback_that_is_switched_off_leaves_nothing_behind():
    codec = Codec(hybrid(0.25, 32), 4)
    codec.encode(np.array([4, 3, 2, 1], np.float32))
    codec.method = hybrid(0.25, 32, feedback=False)
    for _ in range(2):
        assert not codec.decode_sum([codec.encode(np.zeros(4, np.float32))]).any()
        assert not codec.residual.any()


def test_a_correction_must_be_finite_and_ends_what_can_be_undone():
    codec = Codec(hybrid(0.5, 4), 4)
    gradient = gaussian(4)
    codec.encode(gradient)
    before = snapshot(codec)
    with pytest.raises(ValueError, match="correction"):
        codec.amend(np.array([0, np.nan, 0, 0], np.float32))
    assert snapshot(codec) == before
    codec.amend(gradient)
    with pytest.raises(ValueError, match="undo"):
        codec.undo(gradient)


def test_a_state_that_was_set_from_outside_cannot_be_taken_back():
    gradient, zeros = gaussian(50), np.zeros(50, np.float32)
    for attribute in ("residual", "momentum"):
        codec = Codec(hybrid(momentum=0.9), 50)
        codec.encode(gradient)
        setattr(codec, attribute, zeros)
        with pytest.raises(ValueError, match="no encoded step"):
            codec.undo(gradient)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda codecs: pickle.loads(pickle.dumps(codecs))])
def test_copies_of_codecs_hear_each_other_and_not_the_originals(duplicate):
    method, peers = methods.oland_raj(least_bits=2, history=False), Peers()
    originals = [Codec(method, 4000, name, peers=peers) for name in ("large", "small")]
    copies = duplicate(originals)
    few = 2.0**-4
    for codecs, scales, bits in ((originals, (1.0, few), [8, 6]), (copies, (few, few), [8, 8])):
        for codec, scale in zip(codecs, scales, strict=True):
            codec.decode_sum([codec.encode(np.full(4000, scale, np.float32))])
        assert all(codec.encode(np.ones(4000, np.float32)).size for codec in codecs)
        assert [codec.bits for codec in codecs] == bits
