"""Torch tensors as Horovod and the codec take them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core import floats

_TAKEN = (torch.float32, torch.float16, torch.bfloat16)


def wire_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that Horovod reduces a gradient of `dtype` in: it knows no bfloat16."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


def to_wire(gradient: torch.Tensor, fp16: bool) -> torch.Tensor:
    """The gradient as Horovod can reduce it: itself where possible, else a contiguous copy."""
    half = fp16 and gradient.is_floating_point()
    return gradient.contiguous().to(torch.float16 if half else wire_dtype(gradient.dtype))


def to_numpy(tensor: torch.Tensor) -> tuple[NDArray[Any], bool]:
    """The entries in logical order (n,) as the codec takes them, float32, float16 or bfloat16, and whether
    they are the tensor's own memory or a copy."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_contiguous() and tensor.dtype in _TAKEN and tensor.is_cpu and not tensor.is_neg():
        return _flat(tensor), True
    dtype = tensor.dtype if tensor.dtype in _TAKEN else torch.float32
    return _flat(torch.empty(tensor.shape, dtype=dtype, device="cpu").copy_(tensor)), False


def _flat(tensor: torch.Tensor) -> NDArray[Any]:
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().reshape(-1).view(floats.BFLOAT16)
    return tensor.numpy().reshape(-1)


def writable(gradient: torch.Tensor) -> torch.Tensor:
    """The gradient itself, or memory like it where several of its entries share one address."""
    steps = zip(gradient.stride(), gradient.shape, strict=True)
    shared = any(stride == 0 and size > 1 for stride, size in steps)
    return torch.empty_like(gradient, memory_format=torch.contiguous_format) if shared else gradient


def fill(gradient: torch.Tensor, values: NDArray[np.float32]) -> torch.Tensor:
    """Write float32 (n,) in logical order into the gradient, in its own strides and dtype."""
    return writable(gradient).copy_(torch.from_numpy(values).view(gradient.shape))
