"""What encoding is compared with."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from timing import Operation, clock, each

from hgc_horovod import Codec, Method, kernels, methods
from hgc_horovod.core.floats import BFLOAT16

BUCKET = 512  # entries that share a scale of the dense codes
DENSE_BITS = 4


def encode_of(gradient: torch.Tensor, codec: Codec) -> None:
    codec.encode(gradient.numpy())


def top_k(residual: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's own selection."""
    indices = residual.abs().topk(k, sorted=False).indices
    return indices, residual[indices]


def sampled(residual: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Deep Gradient Compression's selection: a threshold from a sample of 1 %, moved until it gives about k.

    With too many above it, the k largest of those are taken, as the paper's hierarchical selection does.
    """
    magnitudes, stride, upper, lower, tries = residual.abs(), 100, 1.3, 0.8, 10
    sample = magnitudes[int(torch.randint(stride, ())) :: stride]
    threshold = float(sample.topk(max(1, k // stride)).values.min())
    indices = (magnitudes >= threshold).nonzero().view(-1)
    for _ in range(tries):
        if indices.numel() > upper * k:
            indices = indices[magnitudes[indices].topk(k).indices]
        elif indices.numel() < lower * k:
            threshold *= lower
            indices = (magnitudes >= threshold).nonzero().view(-1)
        else:
            break
    indices = indices[:k]
    return indices, residual[indices]


def selection(
    select: Callable[[torch.Tensor, int], Any], n: int, k: int
) -> Callable[[torch.Tensor], list[float]]:
    """Add the gradient, select, and take out what was selected, as an encoder must."""
    residual = torch.zeros(n)

    def step(gradient: torch.Tensor) -> None:
        residual.add_(gradient)
        indices, _ = select(residual, k)
        residual[indices] = 0

    return each(step)


def reduced(codec: Codec, dtype: torch.dtype) -> Callable[[torch.Tensor], list[float]]:
    """Encode the gradient in another dtype, which it is given in; NumPy has no bfloat16."""

    def run(gradient: torch.Tensor) -> list[float]:
        values = gradient[0].to(dtype)
        array = values.view(torch.int16).numpy().view(BFLOAT16 if dtype == torch.bfloat16 else np.float16)
        return [clock(codec.encode, array)]

    return run


def two_threads(work: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], list[float]]:
    def run(gradient: torch.Tensor) -> list[float]:
        torch.set_num_threads(2)
        seconds = clock(work, gradient)
        torch.set_num_threads(1)
        return [seconds]

    return run


def dense_codes(
    n: int,
) -> tuple[Callable[[torch.Tensor], list[float]], Callable[[torch.Tensor], list[float]]]:
    """Packing codes of every entry, and adding what they stand for."""
    random = np.random.default_rng(0)
    codes = random.integers(0, 1 << DENSE_BITS, n, np.uint8)
    levels = np.linspace(-1, 1, 1 << DENSE_BITS, dtype=np.float32)
    scales = random.random(-(-n // BUCKET), np.float32)
    chosen = kernels.get()
    packed, out = chosen.pack_codes(codes, DENSE_BITS), np.zeros(n, np.float32)
    return (
        lambda _: [clock(chosen.pack_codes, codes, DENSE_BITS)],
        lambda _: [clock(chosen.add_codes, packed, DENSE_BITS, levels, scales, BUCKET, out)],
    )


def rivals(n: int, row: dict[str, Any]) -> list[Operation]:
    """Operations on one tensor of n entries, at the density and bits of `row`."""
    method: Method = methods.hgc(row["density"], row["bits"])
    k = method.slots(n)

    def codec(used: kernels.Kernels | None = None) -> Codec:
        return Codec(method, n, kernels=used)

    def encode(used: kernels.Kernels) -> Callable[[torch.Tensor], list[float]]:
        return each(encode_of, [codec(used)])

    def operation(name: str, run: Callable[[torch.Tensor], list[float]], **options: Any) -> Operation:
        return Operation([{**row, "operation": name}], run, **{"limit": 25, **options})

    def plain(name: str, run: Callable[[torch.Tensor], list[float]], **options: Any) -> Operation:
        """What knows no density."""
        described = {**row, "operation": name, "density": None, "bits": None, **options}
        return Operation([described], run, stateful=False, limit=25)

    total, narrow = torch.zeros(n), torch.zeros(n, dtype=torch.float16)
    pack, add = dense_codes(n)
    return [
        operation("encode, portable", encode(kernels.native.NativeKernels(path="portable"))),
        operation("encode, 2 threads", encode(kernels.get(threads=2))),
        operation("encode, float16 gradient", reduced(codec(), torch.float16)),
        operation("encode, bfloat16 gradient", reduced(codec(), torch.bfloat16)),
        operation("encode, NumPy reference", encode(kernels.get("reference")), stateful=False, limit=3),
        operation("add_, sampled selection (DGC), gather", selection(sampled, n, k)),
        operation("add_, torch.topk, gather", selection(top_k, n, k), stateful=False, limit=5),
        plain("add_, 2 threads", two_threads(lambda gradient: total.add_(gradient[0]))),
        plain("half()", each(torch.Tensor.half)),
        plain("copy_ into float16", each(lambda gradient: narrow.copy_(gradient))),
        plain("pack_codes", pack, bits=DENSE_BITS, distribution=None),
        plain("add_codes", add, bits=DENSE_BITS, distribution=None),
    ]
