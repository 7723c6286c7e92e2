"""What a user may get wrong: an error that names it, on every rank, and no hang."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import horovod.torch as hvd
import torch

import hgc_horovod.torch as hgc
from hgc_horovod.torch import agreement
from tests.cases import variants

from .harness import OPTIONS, Given, raises, values, wrap

Call = Callable[[], object]


def compression(**options: Any) -> hgc.Compressor:
    return hgc.Compression.hgc(Given().named_parameters(), **options)


def taking(
    kind: type[torch.optim.Optimizer] = torch.optim.SGD,
    names: Sequence[str] | None = None,
    options: Any = None,
    **arguments: Any,
) -> hgc.Compressor:
    """A compressor that takes an optimizer's momentum and knows all parameters, or those of `names`."""
    model = Given()
    optimizer = kind(model.parameters(), **{"lr": 0.1, **arguments})
    named = [(name, p) for name, p in model.named_parameters() if names is None or name in names]
    return hgc.Compression.hgc(named, momentum_from=optimizer, **(options or {}))


def with_optimizer(momentum: float) -> hgc.Compressor:
    model = Given()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    return hgc.Compression.hgc(model.named_parameters(), momentum=0.9, optimizer=optimizer)


def used_up() -> hgc.Compressor:
    named = Given().named_parameters()
    hgc.Compression.hgc(named)
    return hgc.Compression.hgc(named)


def twice() -> hgc.Compressor:
    first, second = Given(), Given()
    return hgc.Compression.hgc([*first.named_parameters(), *second.named_parameters()])


SGD = {"momentum": 0.9}
WRONG: dict[str, tuple[Sequence[str], Call]] = {
    **{
        f"density {value}": (["density", str(value)], lambda value=value: compression(density=value))
        for value in (0, -1, math.nan, 2, math.inf)
    },
    **{
        f"bits {value}": (["bits", str(value)], lambda value=value: compression(bits=value))
        for value in (0, -4, 9, 3.5, True)
    },
    "momentum 1": (["momentum"], lambda: compression(momentum=1.0)),
    "seed": (["seed"], lambda: compression(seed=-1)),
    "duplicate names": (["named_parameters", "matrix", "twice"], twice),
    "no parameters": (["named_parameters", "empty"], lambda: hgc.Compression.hgc([])),
    "used-up generator": (["named_parameters", "anew"], used_up),
    "bare parameters": (["named_parameters", "pairs"], lambda: hgc.Compression.hgc(Given().parameters())),
    "no process set": (["process_set", "3"], lambda: compression(process_set=3)),
    "no loss scale": (["loss_scale", "3"], lambda: compression(loss_scale=3)),
    "no policy": (["policy", "pairs"], lambda: compression(policy=[("*", "dense")])),
    "no name": (["name", "5"], lambda: compression(name=5)),
    "no optimizer": (["optimizer", "3"], lambda: compression(optimizer=3)),
    "no method": (["method"], lambda: hgc.Compression.from_method("hgc", Given().named_parameters())),
    "momentum twice": (["momentum_from", "momentum"], lambda: taking(options={"momentum": 0.9}, **SGD)),
    "momentum left in the optimizer": (["momentum=0.9", "optimizer"], lambda: with_optimizer(0.5)),
    "momentum of Adam": (["momentum_from", "SGD", "Adam"], lambda: taking(torch.optim.Adam)),
    "dampening": (["momentum_from", "dampening", "0.1"], lambda: taking(dampening=0.1, **SGD)),
    "no momentum to move": (["momentum_from", "momentum"], lambda: taking()),
    "momentum of unnamed parameters": (
        ["named_parameters", "momentum_from", "1 ", "(40,)"],
        lambda: taking(names=["matrix", "kernel", "other"], **SGD),
    ),
}


@variants(**{label: {"label": label} for label in WRONG})
def case_arguments(label: str) -> None:
    words, call = WRONG[label]
    raises(ValueError, words, call)


def case_unknown_option() -> None:
    raises(TypeError, ["densty"], compression, densty=0.1)


def case_moved_already() -> None:
    """A second compressor on the same optimizer, whose momentum the first one has."""
    model = Given()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    hgc.Compression.hgc(model.named_parameters(), momentum_from=optimizer)
    raises(
        ValueError,
        ["momentum_from", "another"],
        hgc.Compression.hgc,
        model.named_parameters(),
        momentum_from=optimizer,
    )


def case_adasum() -> None:
    """Adasum combines changes of parameters, which are no gradients: the first backward pass says so."""
    model = Given()
    _optimizer, _ = wrap(model, OPTIONS, op=hvd.Adasum)
    raises(ValueError, ["Adasum", "op="], model.loss(0).backward)


def case_process_set_of_optimizer_only() -> None:
    """Members find out in the first step; nobody waits for the gathering that the others never join."""
    subset = hvd.add_process_set(list(range(1, hvd.size())))
    model = Given({"matrix": (48, 32)})
    optimizer, _ = wrap(model, OPTIONS, attach={"name": "mismatch"}, process_set=subset)
    with mock.patch.object(agreement, "PATIENCE", 1.0):
        model.loss(0).backward()
    if subset.included():
        raises(ValueError, ["process_set"], optimizer.synchronize)
        hvd.barrier()
    else:
        optimizer.synchronize()
        hvd.barrier()
        # What the members have begun ends when this rank takes part, so that the job can go on.
        for begun in ("settings", "matrix"):
            hvd.allgather(torch.zeros(0, dtype=torch.uint8), name=f"mismatch.{begun}")
    hvd.barrier()
    hvd.remove_process_set(subset)


def case_process_set_of_compressor_only() -> None:
    """Ranks outside of the compressor's process set find out before they send anything."""
    subset = hvd.add_process_set(list(range(1, hvd.size())))
    model = Given({"matrix": (48, 32)})
    optimizer, _ = wrap(model, OPTIONS, attach={"process_set": subset})
    if subset.included():
        model.loss(0).backward()
        try:
            optimizer.synchronize()
        except ValueError as error:
            assert "process_set" in str(error)
    else:
        raises(ValueError, ["process_set"], model.loss(0).backward)
        hvd.allreduce(torch.zeros(2), name="matrix")  # what the members have begun
    hvd.barrier()
    hvd.remove_process_set(subset)


def case_sparse_with_moved_momentum() -> None:
    table = torch.nn.Embedding(50, 8, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1, momentum=0.9)
    compressor = hgc.Compression.hgc(table.named_parameters(), momentum_from=optimizer)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=table.named_parameters(), compression=compressor
    )
    rows = torch.arange(5) + hvd.rank()
    (table(rows) * torch.from_numpy(values("rows", (5, 8)))).sum().backward()
    raises(ValueError, ["weight", "sparse", "sparse_as_dense"], optimizer.synchronize)


def case_one_compressor_for_two_optimizers() -> None:
    model = Given()
    _, compressor = wrap(model, OPTIONS)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    named = {"named_parameters": model.named_parameters(), "compression": compressor}
    raises(
        ValueError, ["one compressor", "one DistributedOptimizer"], hvd.DistributedOptimizer, inner, **named
    )
