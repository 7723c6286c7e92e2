"""Methods that send some entries, against their formulas."""

from __future__ import annotations

import numpy as np
import pytest

from hgc_horovod import Codec, methods, parts

from .compare import codec_of, follow
from .definitions import SEED
from .sparse_definitions import Adapted, Bins, Dropping, Fixed, Greedy, Largest
from .tensors import FAMILIES, SMOOTH, gradients

SIZES = (1, 2, 3, 31, 32, 33, 700)
MOMENTA = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "masked": {"momentum": 0.9, "masking": True, "clip": 0.5},
}
HYBRID = {
    **{f"{bits} bits": ({"bits": bits}, {}) for bits in (1, 2, 3, 4, 6, 8, 16, 32)},
    **{name: ({"bits": 4, **momentum}, momentum) for name, momentum in MOMENTA.items()},
    "none kept": ({"bits": 4, "feedback": False}, {"keep": False}),
    "warm-up": (
        {"bits": 4, "warmup_steps": 4, "warmup_stages": 2},
        {"warmup": (0.05 ** (1 / 3), 0.05 ** (2 / 3)), "stage": 2},
    ),
    "listed warm-up": (
        {"bits": 4, "warmup_steps": 2, "warmup": [0.5, 0.25]},
        {"warmup": (0.5, 0.25), "stage": 1},
    ),
}
DGC = {"warmup": (0.25, 0.0625, 0.015625, 0.004)}
CASES = {
    **{
        f"memsgd, {bits} bits": (methods.memsgd(0.1, bits=bits), lambda bits=bits: Largest(0.1, bits))
        for bits in (1, 4, 32)
    },
    "memsgd, momentum": (methods.memsgd(0.1, momentum=0.9), lambda: Largest(0.1, 32, momentum=0.9)),
    "strom": (methods.strom(1.5), lambda: Fixed(1.5)),
    "strom, small": (methods.strom(0.1), lambda: Fixed(0.1)),
    "gradient_dropping": (methods.gradient_dropping(0.2, sample=0.05), lambda: Dropping(0.2, 0.05)),
    "dgc": (methods.dgc(0.05), lambda: Adapted(0.05, 0.01, momentum=0.9, masking=True)),
    "dgc, unmasked": (methods.dgc(0.1, masking=False), lambda: Adapted(0.1, 0.01, momentum=0.9)),
    "dgc, warm-up, bfloat16": (
        methods.dgc(0.001, momentum=0, masking=False, fp16=True, warmup_steps=4),
        lambda: Adapted(0.001, 0.01, 16, **DGC),
    ),
    "dgc, nesterov, clip": (
        methods.dgc(0.05, nesterov=True, clip=0.5),
        lambda: Adapted(0.05, 0.01, momentum=0.9, nesterov=True, masking=True, clip=0.5),
    ),
    "adacomp": (methods.adacomp(32), lambda: Bins(32)),
    "wangni": (methods.wangni(0.1), lambda: Greedy(0.1)),
    "wangni, half": (methods.wangni(0.5), lambda: Greedy(0.5)),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", CASES)
def test_every_step_is_the_formulas(case, family):
    method, definition = CASES[case]
    for n in SIZES:
        follow(codec_of(method, n), definition(), gradients(family, n, 5))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", HYBRID)
def test_every_step_is_the_hybrid_methods(case, family):
    arguments, definition = HYBRID[case]
    for n in SIZES:
        method, bits = methods.hgc(0.05, **arguments), arguments["bits"]
        follow(codec_of(method, n), Largest(0.05, bits, **definition), gradients(family, n, 5))


@pytest.mark.parametrize("case", ["masked"])
def test_the_clip_is_divided_among_the_ranks(case):
    momentum = MOMENTA[case]
    codec = codec_of(methods.hgc(0.05, 4, **momentum), 700, world_size=9)
    follow(codec, Largest(0.05, 4, world=9, **momentum), gradients("normal", 700, 4))


@pytest.mark.parametrize("family", SMOOTH)
def test_one_threshold_for_the_model(family):
    """Each tensor's own in the first step, then that of all tensors' samples of the step before."""
    method, peers = methods.gradient_dropping(0.1, threshold="model", sample=0.1), parts.Peers()
    names, sizes = ("a", "b", "c"), (500, 3000, 40)
    model: list[Dropping] = []
    model += [Dropping(0.1, 0.1, model, name) for name in names]
    codecs = [Codec(method, n, name, SEED, peers=peers) for name, n in zip(names, sizes, strict=True)]
    drawn = {name: gradients(family, n, 4, n) for name, n in zip(names, sizes, strict=True)}
    for step in range(4):
        sent = []
        for codec, definition in zip(codecs, model, strict=True):
            scale = np.float32({"a": 1, "b": 0.1, "c": 10}[codec.name])
            decoded = follow(codec, definition, [scale * drawn[codec.name][step]])
            sent.append(np.count_nonzero(decoded) / codec.size)
    assert sent[2] >= sent[0] > 5 * sent[1]  # c's entries are ten times those of a, and a's of b


def test_dropping_keeps_the_wanted_density():
    codec = codec_of(methods.gradient_dropping(0.01, sample=0.05), 200_000)
    kept = [
        np.count_nonzero(codec.decode_sum([codec.encode(gradient)]))
        for gradient in gradients("laplace", 200_000, 5)
    ]
    assert min(kept) > 0.7 * 2000 and max(kept) < 1.4 * 2000


@pytest.mark.parametrize("family", SMOOTH)
def test_dgc_sends_from_four_fifths_of_k_to_k(family):
    codec = codec_of(methods.dgc(0.01), 50_000)
    for gradient in gradients(family, 50_000, 8):
        kept = np.count_nonzero(codec.decode_sum([codec.encode(gradient)]))
        assert 0.8 * 500 <= kept <= 500


@pytest.mark.parametrize("family", [*SMOOTH, "mostly zeros"])
@pytest.mark.parametrize("density", [0.01, 0.1, 0.5])
def test_wangnis_chances_sum_up_to_the_density(family, density):
    gradient = gradients(family, 5000, 1)[0]
    chances = Greedy(density).chances(gradient)
    assert sum(chances) == pytest.approx(min(density * 5000, np.count_nonzero(gradient)), rel=1e-3)
