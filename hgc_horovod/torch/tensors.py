"""Torch tensors as Horovod and the codec take them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..core import floats
from ..core.block import Block

_TAKEN: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: floats.BFLOAT16,
}
_BYTES = np.dtype(np.uint8)


class Buffer(NamedTuple):
    """The same memory as NumPy and as torch see it."""

    array: NDArray[Any]
    tensor: torch.Tensor

    @classmethod
    def of(cls, array: NDArray[Any]) -> Buffer:
        return cls(array, torch.from_numpy(array))


def wire_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that Horovod reduces a gradient of `dtype` in: it knows no bfloat16."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


def to_wire(gradient: torch.Tensor, fp16: bool) -> torch.Tensor:
    """The gradient as Horovod can reduce it: itself where possible, else a contiguous copy."""
    half = fp16 and gradient.is_floating_point()
    return gradient.contiguous().to(torch.float16 if half else wire_dtype(gradient.dtype))


def entries(tensor: torch.Tensor) -> tuple[Block, bool]:
    """The entries in logical order (n,) as the codec takes them, float32, float16 or bfloat16, and whether
    they are the tensor's own memory or a copy."""
    dtype = _TAKEN.get(tensor.dtype)
    if dtype is not None and tensor.is_contiguous() and tensor.is_cpu and not tensor.is_neg():
        address = tensor.data_ptr()
        if address % dtype.itemsize == 0:
            return Block(address, tensor.numel(), dtype, tensor.untyped_storage()), True
    like = tensor.dtype if dtype is not None else torch.float32
    copy = torch.empty(tensor.shape, dtype=like, device="cpu").copy_(tensor.detach())
    return Block(copy.data_ptr(), copy.numel(), _TAKEN[like], copy), False


def payload(gathered: torch.Tensor) -> Block:
    """Payloads, uint8 (bytes,), as the codec takes them."""
    gathered = gathered.contiguous()
    return Block(gathered.data_ptr(), gathered.numel(), _BYTES, gathered)


def writable(gradient: torch.Tensor) -> torch.Tensor:
    """The gradient itself, or memory like it where several of its entries share one address."""
    steps = zip(gradient.stride(), gradient.shape, strict=True)
    shared = any(stride == 0 and size > 1 for stride, size in steps)
    return torch.empty_like(gradient, memory_format=torch.contiguous_format) if shared else gradient


def is_zero(tensor: torch.Tensor | None) -> bool:
    """Whether all entries are 0, or there is no tensor."""
    if tensor is None:
        return True
    return not (tensor.coalesce().values() if tensor.is_sparse else tensor).any()


def fill(gradient: torch.Tensor, values: NDArray[np.float32]) -> torch.Tensor:
    """Write float32 (n,) in logical order into the gradient, in its own strides and dtype."""
    return writable(gradient).copy_(torch.from_numpy(values).view(gradient.shape))
