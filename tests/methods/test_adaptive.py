"""Methods whose bits follow the training, against their formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hgc_horovod import Codec, methods, parts

from .adaptive_definitions import (
    LossLearning,
    MeanToDeviation,
    NormBits,
    RelativeSize,
    best_of_budget,
    payload_bytes,
)
from .compare import codec_of, follow
from .definitions import NAME, SEED, Levels
from .sparse_definitions import Largest
from .tensors import SMOOTH, gradients

N = 60


def ranks_of(method, ranks, n=N, name=NAME, peers=(None,) * 9):
    return [
        Codec(method, n, name, SEED, rank, ranks, peers=one)
        for rank, one in zip(range(ranks), peers, strict=False)
    ]


def stepped(codecs, each, bits):
    """All ranks take a step with the bits that are expected, and decode what each has sent by the formula."""
    payloads = [codec.encode(gradient) for codec, gradient in zip(codecs, each, strict=True)]
    for codec, payload, gradient in zip(codecs, payloads, each, strict=True):
        assert codec.bits == bits
        definition = Levels(bits, "l2", 512, rank=codec.rank)
        definition.step = codec.step - 1
        want, loose = definition.sends(gradient)
        got = Codec(codec.method, codec.size).decode_sum([payload])
        assert np.allclose(got[~loose], want[~loose], rtol=1e-5, atol=0)
    sums = [codec.decode_sum(payloads) for codec in codecs]
    assert all(one.tobytes() == sums[0].tobytes() for one in sums)


def signal_and_noise(steps, ranks, falls):
    """Gradients whose mean falls below their noise."""
    rng = np.random.default_rng(3)
    direction = rng.standard_normal(N)
    return [
        [(direction * falls**step + rng.standard_normal(N)).astype(np.float32) for _ in range(ranks)]
        for step in range(steps)
    ]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("start", "most", "decay"), [(2, 8, 0.9), (3, 4, 0.5)])
def test_adaqs(ranks, start, most, decay):
    codecs = ranks_of(methods.adaqs(start, most_bits=most, decay=decay), ranks)
    definition, seen = MeanToDeviation(N, ranks, start, most, decay), []
    for each in signal_and_noise(120, ranks, 0.95):
        stepped(codecs, each, definition.bits)
        definition.learn(each)
        seen.append(definition.bits)
    assert seen == sorted(seen) and start < seen[-1] <= most and seen[10] == start


@pytest.mark.parametrize("p", [1, 2, math.inf])
@pytest.mark.parametrize("ranks", [1, 2])
def test_dqsgd_with_a_given_factor(p, ranks):
    """b = log2(t·‖g‖_p + 1) + 1: from 8 bits down to 2 as the gradients shrink."""
    codecs, definition, seen = ranks_of(methods.dqsgd(t=3.0, p=p), ranks), NormBits(4, 3.0, p), []
    for step in range(40):
        each = [
            gradients("normal", N, 1, 9 * step + rank)[0] * np.float32(20 * 0.8**step)
            for rank in range(ranks)
        ]
        stepped(codecs, each, definition.bits)
        definition.learn(each)
        seen.append(definition.bits)
    assert set(seen) >= {8, 5, 3, 2} and seen[0] == 8 and seen[-1] == 2


def test_dqsgd_of_a_strongly_convex_loss():
    mu, smoothness, eta, steps = 0.5, 2.0, 0.1, 50
    alpha = 1 - 2 * mu * eta + smoothness * mu * eta**2
    arguments = {"mu": mu, "smoothness": smoothness, "eta": eta, "steps": steps}
    codecs = ranks_of(methods.dqsgd(t=20.0, **arguments), 2)
    definition, seen = NormBits(4, 20.0, 2, steps=steps, alpha=alpha), []
    for step in range(60):  # also beyond the end
        each = [gradients("normal", N, 1, 9 * step + rank)[0] for rank in range(2)]
        stepped(codecs, each, definition.bits)
        definition.learn(each)
        seen.append(definition.bits)
    assert seen[0] < seen[25] < seen[-1]


@pytest.mark.parametrize("alpha", [{}, {"mu": 0.5, "smoothness": 2.0, "eta": 0.01, "steps": 100}])
def test_dqsgd_calibrates_its_factor_as_told(alpha):
    more = {"steps": 100, "alpha": 1 - 0.01 + 0.0001} if alpha else {}
    codecs, definition = ranks_of(methods.dqsgd(5.0, **alpha), 2), NormBits(5.0, None, 2, **more)
    for step in range(100):
        scale = np.float32(0.97**step)
        each = [scale * gradients("laplace", N, 1, 9 * step + rank)[0] for rank in range(2)]
        stepped(codecs, each, definition.bits)
        definition.learn(each)


@pytest.mark.parametrize("bits", [2.5, 4, 6.3])
@pytest.mark.parametrize(("falls", "within"), [(1.0, 0.05), (0.999, 0.1), (0.99, 0.4)])
def test_dqsgd_sends_the_mean_bits_that_are_wanted(bits, falls, within):
    """Of norms that fall to a twentieth about that: what is still to come cannot be known."""
    codec, used = ranks_of(methods.dqsgd(bits), 1)[0], []
    for step in range(300):
        gradient = gradients("laplace", N, 1, step)[0] * np.float32(falls**step)
        codec.decode_sum([codec.encode(gradient)])
        used.append(codec.bits)
    assert np.mean(used) == pytest.approx(bits, abs=within)
    if falls == 0.99 and bits > 3:
        assert np.mean(used[20:80]) > np.mean(used[-60:]) + 0.5  # and early steps get more


@pytest.mark.parametrize("size", [0.0, 1e-40, 1e30, 3e38])
def test_dqsgd_takes_every_norm_and_a_power_that_underflows(size):
    arguments = {"mu": 1.0, "smoothness": 1.0, "eta": 0.5, "steps": 100_000}
    for method in (methods.dqsgd(), methods.dqsgd(**arguments), methods.dqsgd(t=1e30), methods.dqsgd(p=1)):
        codec = ranks_of(method, 1)[0]
        for _ in range(4):
            codec.decode_sum([codec.encode(np.full(N, size, np.float32))])
            assert 2 <= codec.bits <= 8


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("ranks", [1, 2])
def test_oland_and_raj(history, ranks):
    method, peers = methods.oland_raj(history=history), [parts.Peers() for _ in range(ranks)]
    scales = {"a": 1.0, "b": 0.1, "c": 0.003, "d": 0.0}
    tensors = {name: ranks_of(method, ranks, name=name, peers=peers) for name in scales}
    model: list[RelativeSize] = []
    definitions = {name: RelativeSize(2, 8, history, model) for name in scales}
    for step in range(12):
        expected = {name: definitions[name].bits_of(step) for name in scales}
        for seed, (name, codecs) in enumerate(tensors.items()):
            scale = np.float32(scales[name] * 0.6**step)
            each = [
                gradients("student t", N, 1, 99 * step + 9 * seed + rank)[0] * scale for rank in range(ranks)
            ]
            payloads = [codec.encode(gradient) for codec, gradient in zip(codecs, each, strict=True)]
            for codec in codecs:
                codec.decode_sum(payloads)
                assert codec.bits == expected[name], (step, name)
            definitions[name].learn(each)
    assert expected["d"] == 8 and expected["c"] < expected["b"]
    assert (expected["a"] < 8) == history


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_mqgrad(ranks, epsilon):
    method, peers = methods.mqgrad(interval=3, epsilon=epsilon), [parts.Peers() for _ in range(ranks)]
    codecs, definition, seen = ranks_of(method, ranks, peers=peers), LossLearning(4, 2, 8, 3, epsilon), []
    rng = np.random.default_rng(0)
    for step in range(120):
        each = [gradients("normal", N, 1, 9 * step + rank)[0] for rank in range(ranks)]
        losses = [2 + math.cos(step / 20) + 0.1 * rng.random() for _ in range(ranks)]
        for one, loss in zip(peers, losses, strict=True):
            one.loss = float(np.float32(loss))
        stepped(codecs, each, definition.bits)
        definition.learn([one.loss for one in peers])
        seen.append(definition.bits)
    assert len(set(seen)) > 2 or not epsilon


def test_mqgrad_without_losses_leaves_the_bits():
    codec = ranks_of(methods.mqgrad(5, interval=1, epsilon=1), 1)[0]
    for gradient in gradients("normal", N, 20):
        codec.decode_sum([codec.encode(gradient)])
        assert codec.bits == 5


@pytest.mark.parametrize("n", [1000, 4096])
@pytest.mark.parametrize("ratio", [20, 100, 300])
@pytest.mark.parametrize("family", [*SMOOTH, "wide"])
def test_the_budget_is_spent_as_trying_all_would(family, ratio, n):
    each = gradients(family, n, 2)
    codec = codec_of(methods.budget(ratio, interval=1), n)
    k, bits, left = best_of_budget(each[0], ratio)
    codec.decode_sum([codec.encode(each[0])])
    assert codec.bits == 2  # until the first measurement
    chosen = int(codec.memory["bits"][0])
    assert chosen == bits or left[chosen] == pytest.approx(left[bits], rel=1e-5)
    lost = np.array([left[b] for b in left]) / (each[0].astype(np.float64) ** 2).sum()
    assert codec.memory["lost"] == pytest.approx(lost, rel=1e-3, abs=1e-6)
    definition = Largest(k / n, bits)
    definition.e = codec.residual.copy()
    follow(codec, definition, each[1:])
    size = payload_bytes(n, k, bits)
    assert size <= 4 * n / ratio or k == 1
    assert codec.encode(each[0]).size == size + 4 * 7  # with a note for each choice


def test_the_budgets_choice_on_a_large_tensor_is_that_of_the_whole():
    """A sample decides there."""
    gradient = gradients("laplace", 200_000, 1)[0]
    codec = codec_of(methods.budget(100), gradient.size)
    codec.decode_sum([codec.encode(gradient)])
    sampled = dict(zip((1, 2, 3, 4, 6, 8, 16), codec.memory["lost"], strict=True))
    best = min(sampled, key=sampled.get)
    whole = {}
    for bits in sampled:
        k = codec.method.controller.slots(gradient.size, bits)
        fixed = codec_of(methods.memsgd(k / gradient.size, bits=bits), gradient.size)
        fixed.encode(gradient)
        whole[bits] = (fixed.residual.astype(np.float64) ** 2).sum() / (
            gradient.astype(np.float64) ** 2
        ).sum()
    assert whole[best] < 1.01 * min(whole.values())
    assert sampled == pytest.approx(whole, rel=0.03)
