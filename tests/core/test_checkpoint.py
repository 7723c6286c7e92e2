"""A codec's checkpoints: what they carry, and what is refused."""

import numpy as np
import pytest

from hgc_horovod import Codec
from hgc_horovod.core import wire

from .samples import BITS, MOMENTA, gaussian, hybrid, name, same_bits, snapshot


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("rule", MOMENTA, ids=name)
def test_a_reload_continues_with_the_very_same_bytes(rule, bits):
    method = hybrid(0.02, bits, warmup_steps=12, warmup_stages=3, **rule)
    weight = gaussian(200, seed=99)

    def run(codec: Codec, steps: range) -> list[bytes]:
        return [codec.encode(gaussian(200, step), weight, 1e-3).tobytes() for step in steps]

    uninterrupted = run(Codec(method, 200), range(20))
    codec = Codec(method, 200)
    payloads = run(codec, range(7))
    for begin, end in [(7, 8), (8, 20)]:
        state = codec.state_dict()
        run(codec, range(3))  # what goes on with the old codec is not the checkpoint's business
        codec = Codec(method, 200)
        codec.load_state_dict(state)
        payloads += run(codec, range(begin, end))
    assert payloads == uninterrupted


def test_a_state_is_a_copy_both_ways():
    codec = Codec(hybrid(momentum=0.9, masking=True), 50)
    codec.encode(gaussian(50))
    state, before = codec.state_dict(), snapshot(codec)
    other = Codec(codec.method, 50)
    other.load_state_dict(state)
    assert snapshot(other) == before
    state["residual"][:] = 5
    state["momentum"][:] = 5
    assert snapshot(codec) == snapshot(other) == before


def test_a_state_of_the_start_has_no_momentum():
    codec = Codec(hybrid(momentum=0.9), 3)
    state = codec.state_dict()
    assert state["momentum"] is None and state["step"] == 0 and not state["residual"].any()
    codec.encode(gaussian(3))
    codec.load_state_dict(state)
    assert codec.momentum is None and codec.step == 0 and not codec.residual.any()
    with pytest.raises(ValueError):
        codec.undo(gaussian(3))


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"version": None},
        {"step": -1},
        {"step": 1.5},
        {"step": "1"},
        {"residual": None},
        {"residual": np.zeros(49, np.float32)},
        {"residual": np.zeros(50, np.int64)},
        {"residual": np.zeros((50, 1), np.float32)},
        {"momentum": np.zeros(51, np.float32)},
        {"momentum": "x"},
    ],
    ids=str,
)
def test_bad_states_are_refused_and_change_nothing(changes):
    codec = Codec(hybrid(momentum=0.9), 50, name="embedding")
    codec.encode(gaussian(50))
    before = snapshot(codec)
    with pytest.raises(ValueError, match=f"embedding|{next(iter(changes))}"):
        codec.load_state_dict({**codec.state_dict(), **changes})
    assert snapshot(codec) == before


@pytest.mark.parametrize("missing", ["version", "step", "residual", "momentum"])
def test_incomplete_states_are_refused_and_change_nothing(missing):
    codec = Codec(hybrid(momentum=0.9), 50)
    codec.encode(gaussian(50))
    before, state = snapshot(codec), codec.state_dict()
    del state[missing]
    with pytest.raises((ValueError, KeyError), match=missing):
        codec.load_state_dict(state)
    assert snapshot(codec) == before


def test_a_state_is_arrays_and_plain_data():
    codec = Codec(hybrid(), 3)
    state = codec.state_dict()
    assert same_bits(state.pop("residual"), np.zeros(3, np.float32))
    assert state == {"version": 1, "method": codec.method.to_json(), "step": 0, "momentum": None}


@pytest.mark.parametrize("part", ["residual", "momentum"])
def test_a_state_must_be_finite(part):
    codec = Codec(hybrid(0.5, 4, momentum=0.9), 4)
    codec.encode(gaussian(4))
    state = codec.state_dict()
    state[part][2] = np.inf
    before = snapshot(codec)
    with pytest.raises(ValueError, match="infinity"):
        codec.load_state_dict(state)
    assert snapshot(codec) == before


def test_a_state_from_after_the_warm_up_goes_on_after_it():
    method = hybrid(0.01, 4, warmup=[0.5], warmup_steps=2)
    old, new = Codec(method, 100), Codec(method, 100)
    for step in range(6):
        old.encode(gaussian(100, seed=step))
    new.encode(gaussian(100))
    new.load_state_dict(old.state_dict())
    assert same_bits(new.encode(gaussian(100, seed=7)), old.encode(gaussian(100, seed=7)))
    old.step = 0
    assert wire.read_header(old.encode(gaussian(100))).k == 50
