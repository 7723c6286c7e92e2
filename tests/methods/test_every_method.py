"""What holds for every method: kernels agree to the bit, and payloads, state and settings come back."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from hgc_horovod import Codec, Method, NonFiniteError, inspect, kernels
from hgc_horovod.core import wire
from hgc_horovod.kernels.native import NativeKernels

from .cases import CASES, GATHERED, NAMES, REDUCED, ranks_of, reporting, state, step
from .definitions import NAME, SEED
from .tensors import DENORMAL, FAMILIES, gradients

SHAPE = (25, 40)
N = 1000
NATIVE = {
    "cpu": lambda: kernels.get("cpu"),
    "portable, three threads": lambda: NativeKernels(3, "portable", grain=1),
}


def of_ranks(family, ranks, steps, n=N):
    return [list(each) for each in zip(*(gradients(family, n, steps, r) for r in range(ranks)), strict=True)]


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("case", CASES)
def test_native_kernels_give_the_references_bytes(case, native):
    for family in ("normal", "student t", "mostly zeros", "constant", "wide", DENORMAL):
        for shape in (SHAPE, (1,), (7, 1)) if family == "normal" else (SHAPE,):
            want = ranks_of(CASES[case], shape, 2, kernels.get("reference"))
            got = ranks_of(CASES[case], shape, 2, NATIVE[native]())
            for number, each in enumerate(of_ranks(family, 2, 4, int(np.prod(shape)))):
                theirs, mine = step(want, each), step(got, each)
                for what, one, other in (
                    ("payload", theirs[0], mine[0]),
                    ("decoded", theirs[1:], mine[1:]),
                    *(
                        (name, [a], [b])
                        for (name, a), (_, b) in zip(state(want[0]), state(got[0]), strict=True)
                    ),
                ):
                    for a, b in zip(one, other, strict=True):
                        assert bytes(a) == bytes(b), f"{family} {shape}, step {number}: {what} differs"


@pytest.mark.parametrize("case", GATHERED)
@pytest.mark.parametrize("family", ["normal", "mostly zeros", "zeros", "one hot"])
def test_a_payload_tells_what_it_holds(case, family):
    method = CASES[case]
    codec = ranks_of(method, SHAPE, 1)[0]
    for number, gradient in enumerate(gradients(family, N, 3)):
        payload = codec.encode(gradient)
        told, decoded = inspect(payload), codec.decode_sum([payload])
        assert (told.method, told.n, told.total_bytes, told.bits) == (
            method.name,
            N,
            payload.size,
            codec.bits,
        )
        assert np.isfinite(decoded).all() and told.kept <= told.k
        if told.index_bytes:
            assert told.kept == np.count_nonzero(decoded)
        if not method.varies:
            assert payload.size == method.payload_bytes(N, number)
        if method.name != "signsgd":
            doubled = codec.decode_sum([payload, payload], factor=0.5)
            assert np.abs(doubled - decoded).max() <= 1e-6 * np.abs(decoded).max()
        with pytest.raises(wire.PayloadError):
            codec.decode_sum([payload[:-1]])


@pytest.mark.parametrize("case", GATHERED)
def test_nothing_decodes_to_zeros_and_leaves_the_state(case):
    codec = ranks_of(CASES[case], SHAPE, 1)[0]
    for gradient in gradients("laplace", N, 3):
        before = dict(state(codec))
        nothing = codec.encode_nothing()
        assert not codec.decode_sum([nothing]).any() and dict(state(codec)) == before
        inspect(nothing)
        payload = codec.encode(gradient)
        assert CASES[case].varies or nothing.size == payload.size
        both = codec.decode_sum([payload, nothing])
        if codec.method.vote:
            both = both / 2
        assert both.tobytes() == Codec(codec.method, N).decode_sum([payload]).tobytes()


@pytest.mark.parametrize("native", ["reference", "cpu"])
@pytest.mark.parametrize("case", GATHERED)
def test_undo_brings_the_state_back(case, native):
    codec = ranks_of(CASES[case], SHAPE, 1, kernels.get(native))[0]
    for gradient in gradients("normal", N, 4):
        before, residual = dict(state(codec)), codec.residual.copy()
        momentum = None if codec.momentum is None else codec.momentum.copy()
        payload = codec.encode(gradient)
        codec.undo(gradient)
        after = dict(state(codec))
        assert np.abs(codec.residual - residual).max() < 1e-5
        if momentum is not None:
            assert np.abs(codec.momentum - momentum).max() < 1e-5
        for name in before.keys() - {"residual", "momentum"}:
            assert after[name] == before[name], name
        codec.residual = residual
        codec.momentum = momentum
        again = codec.encode(gradient)
        assert again.tobytes() == payload.tobytes()
        codec.decode_sum([again])


@pytest.mark.parametrize("case", REDUCED)
def test_a_generator_that_is_dropped_has_changed_nothing(case):
    codec = ranks_of(CASES[case], SHAPE, 1)[0]
    for gradient in gradients("normal", N, 3):
        before = dict(state(codec))
        rounds = codec.rounds(gradient)
        vector = next(rounds)
        assert vector.shape == codec.round_sizes[:1]
        if len(codec.round_sizes) > 1:
            rounds.send(vector)
        rounds.close()
        assert dict(state(codec)) == before
        step([codec], [gradient])


@pytest.mark.parametrize("native", ["reference", "cpu"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("case", CASES)
def test_a_gradient_that_is_not_finite_is_refused(case, bad, native):
    codec = ranks_of(CASES[case], SHAPE, 1, kernels.get(native))[0]
    for gradient in gradients("normal", N, 2):
        step([codec], [gradient])
        before, residual = dict(state(codec)), codec.residual.copy()
        with pytest.raises(NonFiniteError, match=NAME):
            step([codec], [np.where(np.arange(N) == N // 3, np.float32(bad), gradient)])
        after = dict(state(codec))
        assert np.abs(codec.residual - residual).max() < 1e-5
        for name in before.keys() - {"residual", "momentum"}:
            assert after[name] == before[name], name


@pytest.mark.parametrize("case", CASES)
def test_a_saved_state_continues_to_the_bit(case):
    each = of_ranks("student t", 2, 8)
    codecs = ranks_of(CASES[case], SHAPE, 2)
    for gradient in each[:4]:
        step(codecs, gradient)
    saved = [pickle.loads(pickle.dumps(codec.state_dict())) for codec in codecs]
    again = [
        Codec(Method.from_json(kept["method"]), N, NAME, SEED, rank, 2, shape=SHAPE, peers=reporting(rank))
        for rank, kept in enumerate(saved)
    ]
    for codec, kept in zip(again, saved, strict=True):
        codec.load_state_dict(kept)
    for gradient in each[4:]:
        (sent, got), (sent_again, got_again) = step(codecs, gradient), step(again, gradient)
        assert [bytes(one) for one in sent] == [bytes(one) for one in sent_again]
        assert got.tobytes() == got_again.tobytes()
        assert list(state(codecs[0])) == list(state(again[0]))


@pytest.mark.parametrize("case", CASES)
def test_json_gives_the_method_back(case):
    method = CASES[case]
    again = Method.from_json(method.to_json())
    assert again == method and hash(again) == hash(method) and again.to_json() == method.to_json()


@pytest.mark.parametrize("name", NAMES)
def test_every_method_has_a_number_on_the_wire(name):
    assert CASES[name].name == name and name in wire.METHOD_NAMES


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n", [0, 1, 2])
def test_the_smallest_tensors(case, n):
    for family in ("normal", "zeros"):
        codecs = ranks_of(CASES[case], (n,), 2)
        for each in of_ranks(family, 2, 3, n) if n else [[np.zeros(0, np.float32)] * 2] * 3:
            _, result = step(codecs, each)
            assert result.shape == (n,) and np.isfinite(result).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", CASES)
def test_what_is_kept_and_what_was_sent_sum_up(case, family):
    method, ranks = CASES[case], 2
    if not method.feedback.keep or method.feedback.momentum or method.feedback.clip:
        return
    codecs, total, sent = ranks_of(method, SHAPE, ranks), np.zeros(N), np.zeros(N)
    size = 0.0
    for each in of_ranks(family, ranks, 5):
        total += np.mean(each, axis=0, dtype=np.float64)
        sent += step(codecs, each)[1]
        size = max(size, np.abs(sent).max(), *(np.abs(codec.residual).max() for codec in codecs))
    kept = np.mean([codec.residual for codec in codecs], axis=0)
    assert np.abs(sent + kept - total).max() <= 2e-6 * size
