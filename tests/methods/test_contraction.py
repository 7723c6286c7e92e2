"""What methods with feedback lose of ‖v‖² in a step: at most the 1 - δ that they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hgc_horovod import Codec, methods

from .definitions import NAME, SEED
from .tensors import FAMILIES, gradients, real

SOURCES = [*FAMILIES, *(f"{layer}, {moment}" for layer in ("convolution", "embedding", "recurrent", "head")
           for moment in ("early", "later"))]  # fmt: skip
N = 3000
ROUNDING = 1 + 1e-5


def vector(source):
    return gradients(source, N, 1)[0] if source in FAMILIES else real()[source].reshape(-1)


def square(values):
    return math.fsum(values.astype(np.float64) ** 2)


def lost(method, v, steps=1, shape=None):
    """‖v - C(v)‖², the mean over some draws of a fresh codec."""
    losses = []
    for rank in range(steps):
        codec = Codec(method, v.size, NAME, SEED, rank, shape=shape)
        if method.by_allreduce:
            codec = Codec(method, v.size, f"{NAME} {rank}", SEED, shape=shape)
            rounds = codec.rounds(v)
            reply = next(rounds)
            try:
                while True:
                    reply = rounds.send(reply)
            except StopIteration as end:
                decoded = end.value
        else:
            decoded = codec.decode_sum([codec.encode(v)])
        assert np.abs(codec.residual - (v - decoded)).max(initial=0) <= 1e-6 * np.abs(v).max(initial=0)
        losses.append(square(codec.residual))
    return float(np.mean(losses))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("density", [0.01, 0.1])
def test_top_k_contracts_by_k_of_n(source, density):
    v = vector(source)
    k = max(1, int(density * v.size + 0.5))
    assert lost(methods.memsgd(density), v) <= (1 - k / v.size) * square(v) * ROUNDING
    bfloat16 = lost(methods.memsgd(density, bits=16), v)
    assert bfloat16 <= (1 - (1 - 2.0**-16) * k / v.size) * square(v) * ROUNDING
    if source not in ("one hot", "mostly zeros"):
        fewer = 0.8 * k / v.size  # where ten adaptations find them
        assert lost(methods.dgc(density, momentum=0), v) <= (1 - fewer) * square(v) * ROUNDING


@pytest.mark.parametrize("source", ["normal", "student t", "convolution, later"])
def test_random_k_contracts_by_k_of_n_in_the_mean(source):
    v = vector(source)[:N]
    shares = lost(methods.memsgd(0.1, selection="random_k"), v, steps=300) / square(v)
    squares = v.astype(np.float64) ** 2
    k = 0.1 * v.size
    deviation = math.sqrt(k * (1 - 0.1) * squares.var() / 300) / squares.sum()
    assert abs(shares - 0.9) < 5 * deviation


@pytest.mark.parametrize("source", SOURCES)
def test_one_bit_methods_contract_by_what_signs_hold(source):
    v = vector(source)
    delta = math.fsum(np.abs(v.astype(np.float64))) ** 2 / (v.size * square(v)) if v.any() else 0
    assert lost(methods.ef_signsgd(), v) == pytest.approx(
        (1 - delta) * square(v), rel=1e-5, abs=1e-5 * square(v)
    )
    assert lost(methods.onebit(), v) <= square(v) * ROUNDING
    if not (v == 0).any():
        assert lost(methods.onebit(), v) <= (1 - delta) * square(v) * ROUNDING


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8, 16, 32])
def test_what_the_hybrid_method_promises(source, bits):
    """No entry's error is larger than the entry from 2 bits on, so nothing is ever made worse.

    With L levels on [lo, hi], r = (hi/lo)^(1/L) and hi the largest, an error is at most √r - 1 of its entry:
    δ is (1 - (√r - 1)²)·k/n. One bit has EF-signSGD's bound, of the k entries."""
    v, density = vector(source), 0.05
    method = methods.hgc(density, bits)
    codec = Codec(method, v.size, NAME, SEED)
    decoded = codec.decode_sum([codec.encode(v)]).astype(np.float64)
    places, exact = np.flatnonzero(decoded), v.astype(np.float64)
    k, kept = method.slots(v.size), exact[places]
    error = np.abs(exact - decoded)[places]
    assert square(codec.residual) <= square(v) * ROUNDING
    if not places.size:
        return
    if bits == 1:
        delta = math.fsum(np.abs(kept)) ** 2 / (k * square(v))
        assert square(codec.residual) <= (1 - delta) * square(v) * ROUNDING
        return
    assert (error <= np.abs(kept) * ROUNDING).all()
    if bits >= 16:
        ratio = 1.0 if bits == 32 else (1 + 2.0**-8) ** 2
    else:
        levels = 2 ** (bits - 1)
        span = np.abs(kept).max() / np.abs(kept).min()
        if span > 4.0**levels:
            return  # values above hi
        ratio = span ** (1 / levels)
    bound = math.sqrt(ratio) - 1
    assert (error <= (bound + 1e-6) * np.abs(kept)).all()
    delta = (1 - bound**2) * places.size / v.size
    assert square(codec.residual) <= (1 - delta) * square(v) * ROUNDING


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_sent_as_it_is_loses_nothing_but_the_rest(source):
    v = vector(source)
    for method in (methods.aiot_partition(), methods.gradient_dropping(0.05), methods.dgc(0.01, momentum=0)):
        assert lost(method, v) <= square(v) * ROUNDING
    assert lost(methods.eightbit(feedback=True), v) <= 0.01 * square(v)


@pytest.mark.parametrize("source", ["normal", "student t", "one hot", "wide convolution, later"])
@pytest.mark.parametrize("rank", [1, 4])
def test_powersgd_projects(source, rank):
    v = vector(source)
    v = v[: v.size // 60 * 60]
    shape = (60, v.size // 60)
    best = np.linalg.svd(v.reshape(shape).astype(np.float64), compute_uv=False)
    kept = lost(methods.powersgd(rank), v, shape=shape)
    assert (best[rank:] ** 2).sum() <= kept * ROUNDING + 1e-9 and kept <= square(v) * ROUNDING
