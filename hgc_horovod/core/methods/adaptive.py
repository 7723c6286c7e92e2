"""Methods whose bits follow the training. All ranks use the same bits, which `report()` tells over time."""

from __future__ import annotations

from typing import Any

from .. import check
from ..bucketed import Uniform
from ..budget import Budget
from ..controllers import Controller, MeanToDeviation, RelativeSize
from ..feedback import Feedback
from ..loss_learning import LossLearning
from ..method import Method
from ..norm_bits import NormBits
from ..quantize import for_bits
from ..select import TopK
from .quantized import NOTHING_KEPT, dense_rule, every


def adaqs(
    start_bits: int = 4,
    *,
    most_bits: int = 8,
    decay: float = 0.9,
    norm: str = "l2",
    bucket: int = 512,
    **dense: Any,
) -> Method:
    """AdaQS: QSGD whose levels double each time the gradient's mean-to-deviation ratio has halved. Unbiased.

    R = ‖m‖ / ‖√(s - m²)‖ with exponential means m of g and s of g², as a mean over the ranks. Few bits early,
    more later. Sends `bits` per entry and 32 per bucket.

    Source: Guo et al., Accelerating distributed deep learning by adaptive gradient quantization, ICASSP 2020.
    A reconstruction from its summary: `decay`, `start_bits` and the first reference (when the means are full)
    are this package's.
    """
    controller = MeanToDeviation(start_bits, most_bits, decay)
    return _qsgd("adaqs", controller, start_bits, norm, bucket, dense)


def dqsgd(
    bits: float = 4.0,
    *,
    t: float | None = None,
    p: float = 2.0,
    steps: int | None = None,
    mu: float = 0.0,
    smoothness: float = 0.0,
    eta: float = 0.0,
    most_bits: int = 8,
    norm: str = "l2",
    bucket: int = 512,
    **dense: Any,
) -> Method:
    """DQ-SGD: QSGD with as many bits as the gradient's norm asks for. Unbiased.

    Non-convex form: b = log2(t·‖g‖_p + 1) + 1. Strongly convex form, for a run of `steps` steps:
    b = log2(t·α^((N-n)/2)·‖g‖_p + 1) + 1 with α = 1 - 2·mu·eta + smoothness·mu·eta². ‖g‖_p is the mean
    over the ranks in the step before. b is rounded and kept from 2 (one bit holds no unbiased value) to
    `most_bits`.

    Args:
        bits: the mean number of bits that is wanted; `t` follows it, unless it is given.
        t: the factor, where `bits` is not to decide it.
        p: 1, 2 or infinity.
        steps, mu, smoothness, eta: of the strongly convex form: its N, μ, L and learning rate η.
        norm, bucket, dense: as for `qsgd`.

    Source: Yan et al., DQ-SGD, 2021 (2107.14575). How `t` follows `bits` is this package's.
    """
    alpha = 1.0
    for name, value in (("mu", mu), ("smoothness", smoothness), ("eta", eta)):
        check.real(name, value)
    if steps is not None:
        check.whole("steps", steps, 1)
        alpha = 1 - 2 * mu * eta + smoothness * mu * eta * eta
        if not 0 < alpha <= 1:
            raise ValueError(f"mu, smoothness and eta must give an alpha above 0 and at most 1; got {alpha}")
    controller = NormBits(bits, t, p, most_bits, steps or 0, alpha)
    return _qsgd("dqsgd", controller, min(max(round(bits), 2), 8), norm, bucket, dense)


def oland_raj(
    most_bits: int = 8,
    *,
    least_bits: int = 2,
    history: bool = True,
    norm: str = "l2",
    bucket: int = 512,
    **dense: Any,
) -> Method:
    """Øland & Raj: QSGD whose bits follow a tensor's root mean square relative to the largest tensor's.
    Unbiased.

    b = most_bits + round(log2(rms / rms_max) / 2), from `least_bits` on. With `history` rms_max is the
    largest so far, so that bits fall with the gradients; without, the largest of the last step.

    Source: Øland & Raj, Reducing communication overhead in distributed learning by an order of magnitude
    (almost), ICASSP 2015. A reconstruction from its summary.
    """
    return _qsgd("oland_raj", RelativeSize(least_bits, most_bits, history), most_bits, norm, bucket, dense)


def mqgrad(
    start_bits: int = 4,
    *,
    least_bits: int = 2,
    most_bits: int = 8,
    interval: int = 50,
    epsilon: float = 0.1,
    norm: str = "l2",
    bucket: int = 512,
    **dense: Any,
) -> Method:
    """MQGrad: QSGD whose bits are learnt by reinforcement from the loss. Unbiased.

    Every `interval` steps an ε-greedy Q-learner takes one bit away, adds one or leaves them, rewarded by the
    fall of the loss per bit. The user reports the loss of each step with `compression.report_loss(loss)`; the
    mean over the ranks counts. Without reports the bits stay.

    Source: Cui et al., MQGrad, ICML 2018 (1804.08066). A reconstruction from its summary: states, reward and
    table are this package's.
    """
    controller = LossLearning(start_bits, least_bits, most_bits, interval, epsilon=epsilon)
    return _qsgd("mqgrad", controller, start_bits, norm, bucket, dense)


def budget(
    ratio: float = 300.0,
    *,
    interval: int = 100,
    momentum: float = 0.0,
    nesterov: bool = False,
    masking: bool = False,
    clip: float | None = None,
    **dense: Any,
) -> Method:
    """The hybrid method with a wanted ratio in place of density and bits, which each tensor's own
    distribution then decides, the cost of positions included. Biased, with feedback.

    Every `interval` steps, of 1, 2, 3, 4, 6, 8 and 16 bits with as many entries as fit a payload of 4·n/ratio
    bytes, the pair that leaves least of ‖v‖² unsent is chosen.
    """
    feedback = Feedback(momentum=momentum, nesterov=nesterov, masking=masking, clip=clip)
    controller = Budget(ratio, interval)
    return Method(
        name="budget",
        selector=TopK(min(1.0, 32 / (11 * controller.ratio))),  # about, for the rule on dense tensors
        quantizer=for_bits(2),
        feedback=feedback,
        dense=dense_rule("budget", dense),
        controller=controller,
    )


def _qsgd(
    name: str, controller: Controller, bits: int, norm: str, bucket: int, dense: dict[str, Any]
) -> Method:
    return every(name, Uniform(bits, norm, bucket), NOTHING_KEPT, dense, controller=controller)
