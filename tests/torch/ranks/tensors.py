"""Gradients of every kind: dtypes, layouts, sizes, sparse ones, unregistered ones, and dense ones."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

import hgc_horovod.torch as hgc
from tests.cases import variants

from .harness import (
    OPTIONS,
    SHAPES,
    STEPS,
    Codecs,
    Given,
    backward,
    check,
    close,
    everyones,
    reduced,
    slot,
    values,
    wrap,
)

Local = dict[str, np.ndarray]


@variants(
    float16={"dtype": torch.float16, "compressed": 2**-11, "dense": 2**-9},
    bfloat16={"dtype": torch.bfloat16, "compressed": 2**-8, "dense": 2**-8},
    float64={"dtype": torch.float64, "compressed": 1e-6, "dense": 1e-14},
)
def case_dtype(dtype: torch.dtype, compressed: float, dense: float) -> None:
    """A gradient comes back in its own dtype. Payloads are float32 inside; Horovod reduces dense ones."""
    model, codecs = Given(dtype=dtype), Codecs(OPTIONS)
    optimizer, _ = wrap(model, OPTIONS)
    for step in reduced(optimizer, backward(model)):
        for name, p in model.named_parameters():
            given = [torch.from_numpy(part).to(dtype) for part in everyones(name, p.shape, step)]
            expected = codecs.mean(name, [part.float().numpy() for part in given], itemsize=dtype.itemsize)
            assert p.grad.dtype == dtype
            bound = dense if name == "bias" else compressed
            close(p.grad, expected, bound=bound, what=f"{name}, step {step}")


def locally(
    model: torch.nn.Module, run: Callable[[torch.nn.Module, int, int], torch.Tensor], step: int
) -> list[Local]:
    """The gradients of `run(model, step, rank)` for every rank, from copies without Horovod's hooks."""
    found = []
    for rank in range(hvd.size()):
        twin = copy.deepcopy(model)
        twin.zero_grad()
        run(twin, step, rank).backward()
        found.append(
            {
                name: torch.zeros(p.shape).numpy() if p.grad is None else p.grad.to_dense().numpy()
                for name, p in twin.named_parameters()
            }
        )
    return found


def case_channels_last() -> None:
    """A convolution in channels_last: the gradient keeps that layout, and each entry its place."""
    torch.manual_seed(5)
    model = torch.nn.Conv2d(8, 16, 3).to(memory_format=torch.channels_last)
    codecs = Codecs(OPTIONS)
    optimizer, _ = wrap(model, OPTIONS)

    def run(module: torch.nn.Module, step: int, rank: int) -> torch.Tensor:
        images = torch.from_numpy(values("images", (4, 8, 10, 10), step, rank))
        return module(images.to(memory_format=torch.channels_last)).square().mean()

    for step in reduced(optimizer, lambda step: run(model, step, hvd.rank()).backward()):
        assert model.weight.grad.is_contiguous(memory_format=torch.channels_last)
        assert not model.weight.grad.is_contiguous()
        parts = locally(model, run, step)
        check(model, codecs, step, given=lambda name, *_, parts=parts: [part[name] for part in parts])


def _transposed(gradient: torch.Tensor) -> torch.Tensor:
    backwards = tuple(reversed(range(gradient.ndim)))
    return gradient.permute(backwards).contiguous().permute(backwards)


def _every_second(gradient: torch.Tensor) -> torch.Tensor:
    return torch.full((*gradient.shape[:-1], 2 * gradient.shape[-1]), 7.0)[..., ::2].copy_(gradient)


@variants(transposed={"lay_out": _transposed}, every_second={"lay_out": _every_second})
def case_layout(lay_out: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Gradients with strides of their own, which plain Horovod refuses, keep shape, strides and memory."""
    model, codecs, before = Given(), Codecs(OPTIONS), {}
    optimizer, _ = wrap(model, OPTIONS)

    def fill(step: int) -> None:
        for name, p in model.named_parameters():
            p.grad = lay_out(torch.from_numpy(values(name, p.shape, step)))
            before[name] = (p.grad.stride(), p.grad.data_ptr())

    for step in reduced(optimizer, fill):
        for name, p in model.named_parameters():
            assert (p.grad.stride(), p.grad.data_ptr()) == before[name]
        check(model, codecs, step)


def case_shared_memory() -> None:
    """A gradient whose entries are one number in memory (an expanded one) becomes an ordinary tensor."""
    model, codecs = Given(), Codecs(OPTIONS)
    optimizer, _ = wrap(model, OPTIONS)

    def fill(step: int) -> None:
        for name, p in model.named_parameters():
            p.grad = torch.from_numpy(values(name, p.shape[-1:], step)).expand(p.shape)

    for step in reduced(optimizer, fill):
        check(
            model,
            codecs,
            step,
            given=lambda name, shape, step: [
                np.broadcast_to(part, shape) for part in everyones(name, shape[-1:], step)
            ],
        )


@variants(dense={}, compressed={"min_elements": 0, "min_ndim": 0, "inflate": True})
def case_smallest(**options: Any) -> None:
    """Parameters of no dimension, of one entry and of none."""
    model = Given({"scalar": (), "one": (1, 1), "empty": (0, 5), "matrix": (48, 32)})
    codecs = Codecs({**OPTIONS, **options})
    optimizer, _ = wrap(model, {**OPTIONS, **options})
    for step in reduced(optimizer, backward(model)):
        check(model, codecs, step)


class Tables(torch.nn.Module):
    """Sparse embeddings and a dense matrix. Which rows are used depends on the rank."""

    def __init__(self, rows: tuple[int, ...], skip: bool) -> None:
        super().__init__()
        self.tables = torch.nn.ModuleList(torch.nn.Embedding(n, 8, sparse=True) for n in rows)
        self.matrix = torch.nn.Parameter(torch.ones(40, 30))
        self.skip = skip

    def loss(self, step: int, rank: int) -> torch.Tensor:
        total = (self.matrix * torch.from_numpy(values("matrix", (40, 30), step, rank))).sum()
        for number, table in enumerate(self.tables):
            if not (self.skip and (step + rank) % 3 == number):
                rows = np.random.default_rng(10 * step + rank).integers(0, table.num_embeddings, 12)
                weights = torch.from_numpy(values(f"rows {number}", (12, 8), step, rank))
                total = total + (table(torch.from_numpy(rows)) * weights).sum()
        return total


@variants(
    gathered={"rows": (200,), "as_dense": False},
    compressed={"rows": (200,)},
    skipped={"rows": (200,), "skip": True},
    two={"rows": (200, 180)},
    two_alike={"rows": (200, 200)},
    two_alike_skipped={"rows": (200, 200), "skip": True},
    two_alike_passes={"rows": (200, 200), "backward_passes_per_step": 2},
)
def case_sparse(
    rows: tuple[int, ...], as_dense: bool = True, skip: bool = False, backward_passes_per_step: int = 1
) -> None:
    """Sparse gradients are Horovod's own; with sparse_as_dense they are compressed. Some rank may skip a
    table."""
    model, codecs = Tables(rows, skip), Codecs(OPTIONS)
    optimizer, _ = wrap(
        model, OPTIONS, sparse_as_dense=as_dense, backward_passes_per_step=backward_passes_per_step
    )

    def fill(step: int) -> None:
        for _ in range(backward_passes_per_step):
            model.loss(step, hvd.rank()).backward()

    for step in reduced(optimizer, fill, range(6)):
        parts = locally(model, Tables.loss, step)
        for name, p in model.named_parameters():
            given = [backward_passes_per_step * part[name] for part in parts]
            plain, compressed = np.mean(given, axis=0), codecs.mean(name, given)
            dense = name != "matrix" and not as_dense
            close(p.grad, plain if dense else compressed, what=f"{name}, step {step}")


@variants(masked={"weight": 0.0}, masked_passes={"weight": 0.0, "passes": 2}, broken={"weight": float("nan")})
def case_two_alike(weight: float, passes: int = 1) -> None:
    """Of two tables of one shape each gradient finds its own, also where both are zero, or NaN, on a rank."""
    model = torch.nn.ModuleList(torch.nn.Embedding(200, 8, sparse=True) for _ in range(2))
    for table in model:
        torch.nn.init.constant_(table.weight, 0.5)
    optimizer, compressor = wrap(model, OPTIONS, sparse_as_dense=True, backward_passes_per_step=passes)
    for step in range(4):
        model.zero_grad(set_to_none=False)
        factor = weight if step == 2 and hvd.rank() == 0 else 1.0
        for _ in range(passes):
            rows = np.random.default_rng([step, hvd.rank()]).integers(0, 200, (2, 12))
            first, second = (table(torch.from_numpy(own)) for table, own in zip(model, rows, strict=True))
            (factor * (first * second).sum()).backward()
        optimizer.synchronize()
        gradients = [table.weight.grad.to_dense() for table in model]
        finite = all(gradient.isfinite().all() for gradient in gradients)
        assert finite == (step != 2 or weight == 0.0)
        if finite:
            with optimizer.skip_synchronize():
                optimizer.step()
    flat = torch.cat([table.weight.detach().flatten() for table in model])
    for other in hvd.allgather(flat[None], name="tables"):
        assert torch.equal(other, flat)
    assert [slot(compressor, f"{i}.weight").step for i in range(2)] == [4 if weight == 0 else 3] * 2


def case_unregistered() -> None:
    """A parameter that the compressor was not told of goes dense, with one warning that shows its shape."""
    model, codecs = Given(), Codecs(OPTIONS)
    registered = [(name, p) for name, p in model.named_parameters() if name != "other"]
    compressor = hgc.Compression.hgc(registered, **OPTIONS)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        compression=compressor,
        named_parameters=model.named_parameters(),
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in reduced(optimizer, backward(model)):
            close(model.other.grad, np.mean(everyones("other", SHAPES["other"], step), axis=0))
            for name, p in registered:
                close(p.grad, codecs.mean(name, everyones(name, p.shape, step)), what=f"{name}, step {step}")
    told = [str(warning.message) for warning in caught if "named_parameters" in str(warning.message)]
    assert len(told) == 1 and str(SHAPES["other"]) in told[0], told
    assert compressor.report().total.steps == STEPS


@variants(float32={}, half={"dense_fp16": True})
def case_small_is_exact(**options: Any) -> None:
    """Small tensors and those of one dimension get the very mean that plain Horovod computes."""
    model = Given({"small": (31, 33), "line": (5000,)})
    optimizer, compressor = wrap(model, {**OPTIONS, **options})
    plain = {}

    def fill(step: int) -> None:
        for name, p in model.named_parameters():  # whole numbers: sums are exact in any order, in half too
            p.grad = torch.from_numpy(np.rint(8 * values(name, p.shape, step)))
            plain[name] = hvd.allreduce(p.grad, name=f"plain {name}").numpy()

    for step in reduced(optimizer, fill):
        for name, p in model.named_parameters():
            close(p.grad, plain[name], bound=2**-10 if options else 0, what=f"{name}, step {step}")
    for row in compressor.report().tensors[:-1]:  # the last one is the agreement
        assert row.compressed_steps == 0 and row.dense_bytes == row.sent_bytes * (2 if options else 1)
