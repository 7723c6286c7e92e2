"""The hybrid method, and no compression."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .. import check
from ..dense import DenseRule
from ..feedback import Feedback
from ..method import Method
from ..quantize import for_bits
from ..schedule import Warmup
from ..select import TopK


def hgc(
    density: float = 0.01,
    bits: int = 4,
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    masking: bool = False,
    clip: float | None = None,
    feedback: bool = True,
    warmup_steps: int = 0,
    warmup_stages: int = 4,
    warmup: Sequence[float] | None = None,
    dense_steps: int = 0,
    min_elements: int = 1024,
    min_ndim: int = 2,
    dense_fp16: bool = False,
    inflate: bool = False,
) -> Method:
    """Hybrid gradient compression: the largest entries of each tensor, a few bits each, the rest kept.

    Sends per kept entry about 2 + log2(1/density) bits of position and `bits` of value: for a tensor of a
    million entries 254 times fewer bytes than float32 at 1 % and 4 bits, 2,257 times at 0.1 % and 2 bits.

    Args:
        density: kept fraction of each tensor, in (0, 1]; at least one entry is kept.
        bits: per kept value, sign included. 1: sign × mean magnitude. 2 to 8: geometric levels.
            16: bfloat16. 32: float32.
        momentum, nesterov: momentum correction. The optimizer then runs without a momentum of its own.
        masking: clear the momentum of what was sent, as Deep Gradient Compression does.
        clip: limit each compressed tensor's local L2 norm to clip·W^(-1/2) before it is accumulated, W the
            world size. Dense tensors are not clipped.
        feedback: keep what was not sent for later steps.
        warmup_steps: the density falls to its final value over this many steps, in `warmup_stages` stages of
            equal length, rounded up to whole steps.
        warmup: the stages' densities, in place of `warmup_stages` exponential ones.
        dense_steps: steps at the very start that are not compressed.
        min_elements, min_ndim: tensors with fewer entries or fewer dimensions are sent dense; by default all
            of one dimension, such as biases and normalization, are.
        dense_fp16: send dense tensors in half precision.
        inflate: compress even where the payload is not smaller than the tensor.

    Raises:
        ValueError: an argument is out of its range; the message names it.

    Source: Hu, Wu and Zhu, HGC: Hybrid Gradient Compression in Distributed Deep Learning, ICAIS 2021.
    A reconstruction from its abstract, which joins sparsification and quantization: the full text was not
    available, and the grid, the momentum correction without masking and the warm-up are this package's.
    """
    schedule = staged(warmup_steps, warmup_stages, warmup, dense_steps)
    return Method(
        name="hgc",
        selector=TopK(density),
        quantizer=for_bits(bits),
        feedback=Feedback(keep=feedback, momentum=momentum, nesterov=nesterov, masking=masking, clip=clip),
        schedule=schedule,
        dense=DenseRule(min_elements=min_elements, min_ndim=min_ndim, inflate=inflate, fp16=dense_fp16),
    )


def staged(steps: int, stages: int, densities: Sequence[float] | None, dense_steps: int) -> Warmup:
    """The schedule of these arguments of `hgc`; ValueError where they are wrong."""
    check.whole("warmup_steps", steps, 0)
    if densities is not None and (isinstance(densities, str) or not isinstance(densities, Sequence)):
        raise ValueError(f"warmup must be a list of densities; got {densities!r}")
    stages = check.whole("warmup_stages", stages, 1) if densities is None else len(densities)
    if densities is not None and (not stages or steps < stages):
        raise ValueError(
            f"warmup lists the densities of {stages} stages, so warmup_steps must be at least "
            f"{max(stages, 1)} and the list not empty; got warmup_steps={steps}"
        )
    return Warmup(
        dense_steps=dense_steps,
        stage_steps=-(-steps // stages),
        stages=stages if steps else 0,
        densities=None if densities is None else tuple(densities),
    )


def dense(fp16: bool = False) -> Method:
    """No compression: tensors are sent as they are, or cast to half precision. For a `policy`."""
    return Method(
        name="dense",
        selector=TopK(1.0),
        quantizer=for_bits(32),
        feedback=Feedback(keep=False),
        dense=DenseRule(min_elements=sys.maxsize, fp16=fp16),
    )
