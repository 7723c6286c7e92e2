"""Methods that send some entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import check
from ..chance import BinMax, Proportional
from ..feedback import Feedback
from ..matrices import RandomK
from ..method import Method
from ..partition import EntropyPartition
from ..quantize import BFloat16, Float32, Quantizer, SignMean, for_bits
from ..schedule import Warmup
from ..select import Selector, TopK
from ..thresholds import AdaptedThreshold, FixedThreshold, SampledThreshold
from .hybrid import staged
from .quantized import dense_rule


def some(
    name: str,
    selector: Selector,
    quantizer: Quantizer,
    feedback: Feedback,
    dense: dict[str, Any],
    **more: Any,
) -> Method:
    return Method(
        name=name,
        selector=selector,
        quantizer=quantizer,
        feedback=feedback,
        dense=dense_rule(name, dense),
        **more,
    )


def strom(tau: float, *, expected_density: float = 0.01, **dense: Any) -> Method:
    """Strom's: entries with |v| ≥ tau, v = e + g, are sent as ±tau, the rest is kept. Biased.

    `tau` is in units of the gradient and belongs to the model: try the size of what the hundredth largest
    fraction of entries reaches. Sends a varying number of entries, about 2 + log2(1/density) bits of position
    and 1 of value each. `expected_density` only tells which tensors are too small to gain.

    Source: Strom, Scalable distributed DNN training using commodity GPU cloud computing, Interspeech 2015.
    """
    return some("strom", FixedThreshold(tau, expected_density), SignMean(), Feedback(), dense)


def gradient_dropping(
    density: float = 0.01,
    *,
    threshold: str = "tensor",
    sample: float = 0.001,
    bits: int = 32,
    momentum: float = 0.0,
    **dense: Any,
) -> Method:
    """Gradient dropping: entries below the (1 - density) quantile of |v| are dropped and kept for later, by a
    threshold from a random sample. Biased.

    `threshold` "tensor": each tensor has its own. "model": one holds for all tensors of a rank, from the
    samples of the step before (this package's way to know it before all gradients are there). Sends about
    `density`·n entries, a number that varies, at about 2 + log2(1/density) + `bits` bits each.

    Source: Aji & Heafield, Sparse communication for distributed gradient descent, EMNLP 2017 (1704.05021).
    """
    selector = SampledThreshold(density, sample, threshold)
    return some("gradient_dropping", selector, for_bits(bits), Feedback(momentum=momentum), dense)


def dgc(
    density: float = 0.001,
    *,
    momentum: float = 0.9,
    nesterov: bool = False,
    clip: float | None = None,
    masking: bool = True,
    fp16: bool = False,
    warmup_steps: int = 0,
    warmup: Sequence[float] = (0.25, 0.0625, 0.015625, 0.004),
    sample: float = 0.01,
    **dense: Any,
) -> Method:
    """Deep Gradient Compression: entries that reach a sampled threshold, momentum correction, masking of the
    momentum of what was sent, local clipping to clip·W^(-1/2), a warm-up of the density. Biased, with
    feedback.

    The optimizer runs without a momentum of its own; without momentum (0) there is nothing to mask. `warmup`
    lists the densities (sparsity 75 to 99.6 %) of the stages that `warmup_steps` are divided into. At most
    `density`·n entries are sent, and at least 0.8 of that where ten adaptations find them, at
    2 + log2(1/density) bits of position and 32 of value each (16 with `fp16`, here
    bfloat16).

    Source: Lin et al., Deep gradient compression, ICLR 2018 (1712.01887).
    """
    feedback = Feedback(momentum=momentum, nesterov=nesterov, masking=masking, clip=clip)
    schedule = Warmup() if warmup_steps == 0 else staged(warmup_steps, 0, warmup, 0)
    quantizer = BFloat16() if check.flag("fp16", fp16) else Float32()
    return some("dgc", AdaptedThreshold(density, sample), quantizer, feedback, dense, schedule=schedule)


def memsgd(
    density: float = 0.01, *, selection: str = "top_k", bits: int = 32, momentum: float = 0.0, **dense: Any
) -> Method:
    """Mem-SGD: top-k or random-k of v = e + g with memory. Biased; contracts by δ = density.

    With `selection` "random_k" all ranks draw the same positions, so that none are sent, and the values are
    averaged by an allreduce: 32·density bits per entry. With "top_k" about density · (2 + log2(1/density) +
    `bits`).

    Source: Stich, Cordonnier & Jaggi, Sparsified SGD with memory, NeurIPS 2018 (1809.07599).
    """
    if selection not in ("top_k", "random_k"):
        raise ValueError(f'selection must be "top_k" or "random_k"; got {selection!r}')
    feedback = Feedback(momentum=momentum)
    if selection == "top_k":
        return some("memsgd", TopK(density), for_bits(bits), feedback, dense)
    if bits != 32:
        raise ValueError(f"bits must be 32 for random_k, whose values are averaged as they are; got {bits!r}")
    return some("memsgd", RandomK(density), Float32(), feedback, dense)


def adacomp(bin_size: int = 500, *, expected_density: float = 0.01, **dense: Any) -> Method:
    """AdaComp: in each bin, the entries that the same gradient once more would lift to the bin's largest, all
    as ± the mean of the bins' largest magnitudes. Biased, with feedback.

    v = e + g, H = v + g; entry i of a bin is sent where |H_i| ≥ max|v| of the bin. The paper has bins of 50
    for convolutions and 500 for other layers: give convolutions their own by `policy`. Sends a
    varying number, at least one entry of each bin that is not zero: about 2 + log2(1/density) bits of
    position, 1 of value.

    Source: Chen et al., AdaComp, AAAI 2018 (1712.02679).
    """
    return some("adacomp", BinMax(bin_size, expected_density), SignMean(), Feedback(), dense)


def wangni(density: float = 0.01, *, bits: int = 32, **dense: Any) -> Method:
    """Gradient sparsification: entry i is sent with probability p_i = min(λ|g_i|, 1), as g_i / p_i. Unbiased,
    nothing is kept.

    λ is found by the paper's greedy iteration for an expected number of density·n entries. Sends about
    2 + log2(1/density) bits of position and `bits` of value per entry (fewer than 32 bits bias it).

    Source: Wangni, Wang, Liu & Zhang, Gradient sparsification, NeurIPS 2018 (1710.09854).
    """
    return some("wangni", Proportional(density), for_bits(bits), Feedback(keep=False), dense)


def aiot_partition(
    block: int = 256,
    *,
    key_share: float = 0.25,
    key_entropy: float = 0.94,
    sparse_entropy: float = 0.97,
    bits: int = 32,
    **dense: Any,
) -> Method:
    """Partition-based compression: a tensor is cut, block by block, into a key and a sparse region by the
    magnitude that a small network predicts, and in each region what exceeds a threshold set by entropy is
    sent. Biased, with feedback.

    See `hgc_horovod.core.partition` for the network. Smaller shares of entropy send more. Sends a varying
    number of entries, about 2 % at the defaults.

    Source: Guo, Liu & Zhang, Partition-based gradient compression for AIoT, Sensors 2021. A reconstruction
    from its summary: features, network, training and the defaults of all shares are this package's.
    """
    selector = EntropyPartition(block, key_share, key_entropy, sparse_entropy)
    return some("aiot_partition", selector, for_bits(bits), Feedback(), dense)
