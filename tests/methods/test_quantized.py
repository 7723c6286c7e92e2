"""Methods that send every entry, against their formulas."""

from __future__ import annotations

import numpy as np
import pytest

from hgc_horovod import Codec, methods

from .compare import codec_of, follow
from .definitions import NAME, SEED, ClassMeans, Levels, Powers, Signs, Tree
from .tensors import DENORMAL, FAMILIES, gradients

BUCKET = 16
SIZES = (1, 2, BUCKET - 1, BUCKET, BUCKET + 1, 5 * BUCKET - 1, 5 * BUCKET, 5 * BUCKET + 1)
EVERY = [*FAMILIES, DENORMAL]
KEPT = {"keep": True}
CASES = {
    "qsgd": (methods.qsgd(), lambda: Levels(4, "l2", 512)),
    "qsgd, 2 bits": (methods.qsgd(2, bucket=BUCKET), lambda: Levels(2, "l2", BUCKET)),
    "qsgd, 8 bits": (methods.qsgd(8, bucket=BUCKET), lambda: Levels(8, "l2", BUCKET)),
    "qsgd, max": (methods.qsgd(3, norm="max", bucket=BUCKET), lambda: Levels(3, "max", BUCKET)),
    "qsgd, whole": (methods.qsgd(5, norm="max", bucket=0), lambda: Levels(5, "max", 0)),
    "terngrad": (methods.terngrad(), lambda: Levels(2, "max", 0, 2.5)),
    "terngrad, unclipped": (methods.terngrad(sigmas=None), lambda: Levels(2, "max", 0)),
    "terngrad, buckets": (methods.terngrad(sigmas=1.0, bucket=BUCKET), lambda: Levels(2, "max", BUCKET, 1.0)),
    "signsgd": (methods.signsgd(), lambda: Signs(mean=False)),
    "ef_signsgd": (methods.ef_signsgd(), lambda: Signs(mean=True, **KEPT)),
    "ef_signsgd, buckets": (methods.ef_signsgd(bucket=BUCKET), lambda: Signs(True, BUCKET, **KEPT)),
    "ef_signsgd, momentum": (
        methods.ef_signsgd(momentum=0.9, clip=0.5),
        lambda: Signs(mean=True, momentum=0.9, clip=0.5, **KEPT),
    ),
    "ef_signsgd, nesterov": (
        methods.ef_signsgd(momentum=0.5, nesterov=True),
        lambda: Signs(mean=True, momentum=0.5, nesterov=True, **KEPT),
    ),
    "onebit": (methods.onebit(), lambda: ClassMeans(**KEPT)),
    "onebit, momentum": (methods.onebit(momentum=0.9), lambda: ClassMeans(momentum=0.9, **KEPT)),
    "eightbit": (methods.eightbit(), lambda: Tree()),
    "eightbit, buckets": (methods.eightbit(bucket=BUCKET), lambda: Tree(BUCKET)),
    "eightbit, feedback": (methods.eightbit(feedback=True), lambda: Tree(**KEPT)),
    "natural": (methods.natural(), lambda: Powers()),
}


@pytest.mark.parametrize("family", EVERY)
@pytest.mark.parametrize("case", CASES)
def test_every_step_is_the_formulas(case, family):
    method, definition = CASES[case]
    for n in (*SIZES, 700):
        follow(codec_of(method, n), definition(), gradients(family, n, 3))


@pytest.mark.parametrize("n", [511, 512, 513, 1024, 1025])
def test_the_edges_of_the_default_bucket(n):
    follow(codec_of(methods.qsgd(), n), Levels(4, "l2", 512), gradients("normal", n, 2))


@pytest.mark.parametrize("rank", [0, 3])
def test_ranks_and_steps_draw_other_numbers(rank):
    gradient = gradients("normal", 300, 1)[0]
    codec = Codec(methods.qsgd(), 300, NAME, SEED, rank)
    decoded = follow(codec, Levels(4, "l2", 512, rank=rank), [gradient] * 2)
    assert (decoded[0] != decoded[1]).any()
    other = Codec(methods.qsgd(), 300, NAME, SEED, rank + 1)
    assert (other.decode_sum([other.encode(gradient)]) != decoded[0]).any()


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_vote_is_the_sign_of_most_ranks(ranks):
    n = 200
    each = [gradients(family, n, 1, rank)[0] for rank, family in zip(range(ranks), FAMILIES, strict=False)]
    codecs = [Codec(methods.signsgd(), n, NAME, SEED, rank, ranks) for rank in range(ranks)]
    payloads = [codec.encode(gradient) for codec, gradient in zip(codecs, each, strict=True)]
    got = codecs[0].decode_sum(payloads, factor=1 / ranks)
    for i in range(n):
        votes = sum(-1 if gradient[i] < 0 else 1 for gradient in each)
        assert got[i] == pytest.approx((votes > 0) - (votes < 0), abs=1e-6)
        assert (got[i] == 0) == (votes == 0)


def test_the_tree_is_exact_at_its_levels():
    levels = np.array(Tree().codes)
    codec = codec_of(methods.eightbit(), 255)
    top = 1 / levels[-1]  # so that max|g| is where the scale must be
    gradient = np.concatenate([levels, -levels[1:]]).astype(np.float32)
    gradient[127] = 1.0  # the scale
    got = codec.decode_sum([codec.encode(gradient)])
    wanted = gradient.copy()
    wanted[127] = levels[-1]
    assert np.allclose(got, wanted, rtol=1e-6, atol=0) and top > 1
