"""Unbiased methods are unbiased, and vary no more than published. All draws are fixed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hgc_horovod import Codec, methods

from .definitions import NAME, SEED, buckets
from .matrix_definitions import probabilities
from .sparse_definitions import Greedy
from .tensors import SMOOTH, gradients, real

DRAWS, SHAPE, N = 1500, (16, 24), 384
MOST_Z = 5.5  # a normal deviate exceeds it once in 26 million
BUCKET = 64
METHODS = {
    "qsgd": methods.qsgd(4, bucket=BUCKET),
    "qsgd, 2 bits, max": methods.qsgd(2, norm="max", bucket=N),
    "qsgd, 8 bits": methods.qsgd(8, bucket=N),
    "terngrad": methods.terngrad(sigmas=None),
    "natural": methods.natural(),
    "wangni": methods.wangni(0.2),
    "atomo": methods.atomo(3),
    "adaqs": methods.adaqs(3, bucket=BUCKET),
    "dqsgd": methods.dqsgd(3, bucket=BUCKET),
}


def draws(method, gradient, count=DRAWS):
    """What is decoded of one gradient in many steps of two ranks, float64 (count, n).

    But for matrices, many copies stand in one tensor: each entry has a draw of its own."""
    copies, shape = (1, SHAPE) if method.name == "atomo" else (50, (50 * N,))
    tensor = np.tile(gradient, copies)
    codecs = [Codec(method, tensor.size, NAME, SEED, rank, 2, shape=shape) for rank in range(2)]
    reader = Codec(method, tensor.size)  # so that no controller learns, and bits stay
    steps = range(count // copies)
    drawn = [reader.decode_sum([codecs[i % 2].encode(tensor)]).astype(np.float64) for i in steps]
    return np.concatenate(drawn).reshape(-1, N)


def gradient_of(source):
    if source in SMOOTH:
        return gradients(source, N, 1)[0]
    return np.ascontiguousarray(real()[source].reshape(-1)[:N])


@pytest.mark.parametrize("source", [*SMOOTH, "convolution, later"])
@pytest.mark.parametrize("case", METHODS)
def test_the_mean_of_many_draws_is_the_gradient(case, source):
    gradient = gradient_of(source)
    drawn = draws(METHODS[case], gradient, 600 if case == "atomo" else DRAWS)
    wrong = drawn.mean(axis=0) - gradient
    error = drawn.std(axis=0, ddof=1) / math.sqrt(len(drawn))
    rounding = 1e-6 * np.abs(drawn).max(axis=0) + 1e-12

    # each entry that varied often enough for its mean to be normal
    usual = np.median(drawn, axis=0)
    often = (drawn != usual).sum(axis=0) >= 40
    z = wrong[often] / (error + rounding)[often]
    assert often.sum() > N / 10 and np.abs(z).max() < MOST_Z

    # all together, each draw being one number: along the gradient, its signs, and at random
    rng = np.random.default_rng(1)
    for direction in (gradient, np.sign(gradient), *rng.standard_normal((4, N))):
        along = (drawn - gradient) @ direction
        sure = along.std(ddof=1) / math.sqrt(len(drawn)) + 1e-6 * np.linalg.norm(gradient) * np.linalg.norm(
            direction
        )
        assert abs(along.mean()) / sure < MOST_Z


def norms(values, bucket, kind):
    order = 2 if kind == "l2" else np.inf
    scale = np.empty(values.size)
    for places in buckets(values.size, bucket):
        scale[places.start : places.stop] = np.linalg.norm(values[places.start : places.stop], order)
    return scale


def squared_error(method, gradient, count=400):
    return ((draws(method, gradient, count) - gradient) ** 2).sum(axis=1).mean()


@pytest.mark.parametrize("source", [*SMOOTH, "recurrent, early"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("norm", ["l2", "max"])
def test_qsgds_variance_is_below_its_bound(source, bits, norm):
    """min(n/s², √n/s)·‖v‖² for each bucket of n, with the L2 norm; and what rounding makes it exactly."""
    gradient, s = gradient_of(source).astype(np.float64), 2 ** (bits - 1) - 1
    measured = squared_error(methods.qsgd(bits, bucket=BUCKET, norm=norm), gradient.astype(np.float32))
    scale = norms(gradient, BUCKET, norm)
    fraction = np.abs(gradient) / scale * s % 1
    assert measured == pytest.approx(((scale / s) ** 2 * fraction * (1 - fraction)).sum(), rel=0.08)
    if norm == "l2":
        assert measured <= min(BUCKET / s**2, math.sqrt(BUCKET) / s) * (gradient**2).sum()


@pytest.mark.parametrize("source", [*SMOOTH, "recurrent, early"])
def test_variances_are_those_of_the_formulas(source):
    gradient = gradient_of(source)
    v = gradient.astype(np.float64)
    whole = (v**2).sum()
    measured = squared_error(methods.terngrad(sigmas=None), gradient)
    assert measured == pytest.approx((np.abs(v).max() * np.abs(v) - v**2).sum(), rel=0.08)

    measured = squared_error(methods.natural(), gradient)
    lower = 2.0 ** np.floor(np.log2(np.abs(v), where=v != 0, out=np.full(v.size, -126.0)))
    fraction = np.abs(v) / lower - 1
    assert measured == pytest.approx((lower**2 * fraction * (1 - fraction))[v != 0].sum(), rel=0.05)
    assert measured <= whole / 8

    measured = squared_error(methods.wangni(0.2), gradient, 1500)
    chances = np.array(Greedy(0.2).chances(gradient))
    used = v != 0
    assert measured == pytest.approx((v[used] ** 2 / chances[used]).sum() - whole, rel=0.08)

    measured = squared_error(methods.atomo(3), gradient, 800)
    weights = np.linalg.svd(v.reshape(SHAPE), compute_uv=False)
    bound = (weights**2 / np.array(probabilities(weights.tolist(), 3))).sum() - whole
    assert measured == pytest.approx(bound, rel=0.12)


@pytest.mark.parametrize("source", SMOOTH)
def test_wangni_sends_the_expected_number(source):
    gradient = gradient_of(source)
    sent = (draws(methods.wangni(0.2), gradient, 500) != 0).sum(axis=1)
    assert sent.mean() == pytest.approx(round(0.2 * N), rel=0.02)


def test_clipping_is_terngrads_only_bias():
    gradient = gradient_of("student t")
    limit = 2.5 * math.sqrt((gradient.astype(np.float64) ** 2).mean())
    drawn = draws(methods.terngrad(), gradient)
    wrong = drawn.mean(axis=0) - np.clip(gradient, -limit, limit)
    often = np.minimum((drawn != 0).sum(axis=0), (drawn == 0).sum(axis=0)) >= 40
    z = wrong / (drawn.std(axis=0, ddof=1) / math.sqrt(DRAWS) + 1e-6 * limit)
    assert np.abs(z[often]).max() < MOST_Z
    beyond = np.abs(gradient) > limit
    assert beyond.any() and (np.abs(np.abs(drawn[:, beyond]) - limit) < 1e-6 * limit).all()
