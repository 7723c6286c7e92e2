"""Methods that send every entry, a few bits each."""

from __future__ import annotations

from typing import Any

from ..bucketed import DynamicTree, PowerOfTwo, Sign, TwoMeans, Uniform
from ..dense import DenseRule
from ..feedback import Feedback
from ..method import Method
from ..quantize import Quantizer
from ..select import All

DENSE_OPTIONS = ("min_elements", "min_ndim", "inflate", "dense_fp16")


def every(
    name: str, quantizer: Quantizer, feedback: Feedback, options: dict[str, Any], **more: Any
) -> Method:
    """A method that sends every entry; `options` are those of `hgc` about dense tensors."""
    return Method(
        name=name,
        selector=All(),
        quantizer=quantizer,
        feedback=feedback,
        dense=dense_rule(name, options),
        **more,
    )


def dense_rule(name: str, options: dict[str, Any]) -> DenseRule:
    """The rule for dense tensors that the options give; ValueError where there are others among them."""
    if strange := sorted(options.keys() - set(DENSE_OPTIONS)):
        raise ValueError(
            f"{name} takes {', '.join(DENSE_OPTIONS)} beside its own arguments; got {strange[0]}"
        )
    renamed = {"fp16" if key == "dense_fp16" else key: value for key, value in options.items()}
    return DenseRule(**renamed)


NOTHING_KEPT = Feedback(keep=False)


def qsgd(bits: int = 4, *, norm: str = "l2", bucket: int = 512, **dense: Any) -> Method:
    """QSGD: whole levels of a bucket's norm, rounded up or down at random. Unbiased, nothing is kept.

    Q(g_i) = ‖g‖ · sgn(g_i) · ζ_i, ζ_i in {0, 1/s, …, 1}, rounded up with probability s·|g_i|/‖g‖ - ⌊…⌋, where
    ‖g‖ is the norm of the entry's bucket and s = 2^(bits-1) - 1.

    Sends `bits` per entry and 32 per bucket: 4.0625 bits at the defaults.

    Args:
        bits: per entry, sign included, 2 to 8.
        norm: "l2" is the paper's; "max" (L∞) has less variance where buckets are large.
        bucket: entries with a norm of their own; 0: the whole tensor.
        dense: `min_elements`, `min_ndim`, `inflate` and `dense_fp16`, as for `hgc`.

    Source: Alistarh et al., QSGD, NeurIPS 2017 (1610.02132).
    """
    return every("qsgd", Uniform(bits, norm, bucket), NOTHING_KEPT, dense)


def terngrad(*, sigmas: float | None = 2.5, bucket: int = 0, **dense: Any) -> Method:
    """TernGrad: -s, 0 or +s for every entry, s the largest magnitude after clipping. Unbiased but for the
    clipping, nothing is kept.

    g ← clip(g, ±sigmas·σ), s = max|g|, s·sgn(g_i)·b_i with b_i = 1 with probability |g_i|/s. σ is taken about
    0, where gradients have their mean: the root mean square.

    Sends 2 bits per entry, and 32 per tensor (or per `bucket` of entries).

    Source: Wen et al., TernGrad, NeurIPS 2017 (1705.07878).
    """
    return every("terngrad", Uniform(2, "max", bucket, sigmas), NOTHING_KEPT, dense)


def signsgd(**dense: Any) -> Method:
    """signSGD with majority vote: each rank sends signs, and every entry of the result is the sign that most
    ranks sent, or 0 where as many sent the one as the other. Biased, nothing is kept.

    sign(0) = +1, since one bit holds no zero. The result has the magnitude 1 (W with op=Sum): the learning
    rate must be that of a sign method, often 100 times smaller than SGD's.

    Sends 1 bit per entry.

    Source: Bernstein et al., signSGD with majority vote, ICLR 2019 (1810.05291).
    """
    return every("signsgd", Sign(scale="one"), NOTHING_KEPT, dense, vote=True)


def ef_signsgd(
    *, momentum: float = 0.0, nesterov: bool = False, bucket: int = 0, clip: float | None = None, **dense: Any
) -> Method:
    """EF-signSGD: Δ = (‖v‖₁ / n) · sign(v), v = e + g, and what Δ does not carry is kept. Biased.

    sign(0) = +1. It contracts by ‖v‖₁² / (n·‖v‖₂²). With `momentum` it is dist-EF-SGDM: the feedback is
    that of the momentum, and the optimizer runs without.

    Sends 1 bit per entry, and 32 per tensor (or per `bucket` of entries).

    Source: Karimireddy et al., Error feedback fixes signSGD, ICML 2019 (1901.09847); Zheng, Huang & Kwok,
    NeurIPS 2019.
    """
    feedback = Feedback(momentum=momentum, nesterov=nesterov, clip=clip)
    return every("ef_signsgd", Sign(bucket=bucket), feedback, dense)


def onebit(
    *, momentum: float = 0.0, nesterov: bool = False, clip: float | None = None, **dense: Any
) -> Method:
    """1-bit SGD: threshold 0, and for each side of it the mean of the values there; the rest is kept. Biased.

    Sends 1 bit per entry, and 64 per tensor (the paper has a pair of means for each column).

    Source: Seide et al., 1-bit stochastic gradient descent, Interspeech 2014.
    """
    return every("onebit", TwoMeans(), Feedback(momentum=momentum, nesterov=nesterov, clip=clip), dense)


def eightbit(*, bucket: int = 0, feedback: bool = False, **dense: Any) -> Method:
    """8-bit approximation: a sign and seven bits of a dynamic tree, nearest to g / max|g|. Biased a little;
    nothing is kept unless `feedback`.

    A code's leading zeros are a decimal exponent, the first 1 ends it, and what follows are linear steps
    between 0.1 and 1, whose middles stand for them.

    Sends 8 bits per entry, and 32 per tensor (or per `bucket` of entries).

    Source: Dettmers, 8-bit approximations for parallelism in deep learning, ICLR 2016 (1511.04561). The
    steps' middles are a reconstruction.
    """
    return every("eightbit", DynamicTree(bucket=bucket), Feedback(keep=feedback), dense)


def natural(**dense: Any) -> Method:
    """Natural compression: every entry rounded to a power of two, up or down at random. Unbiased, of a
    variance of at most ‖g‖² / 8; nothing is kept.

    Sends 9 bits per entry: the sign and the exponent of float32.

    Source: Horváth et al., Natural compression for distributed deep learning (1905.10988).
    """
    return every("natural", PowerOfTwo(), NOTHING_KEPT, dense)
