"""Other methods for some parameters, by name, size and role."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import horovod.torch as hvd
import torch

import hgc_horovod.torch as hgc
from hgc_horovod import methods
from tests.cases import variants

from .harness import OPTIONS, STEPS, Codecs, Given, backward, close, everyones, raises, reduced, wrap

SPARSER = {**OPTIONS, "density": 0.01, "bits": 2}


@variants(plain={}, momentum={"momentum": 0.9})
def case_by_name(**momentum: Any) -> None:
    """The first pattern that matches decides: compressed otherwise, dense, or as the default says."""
    model = Given()
    policy = [("kern*", methods.hgc(**SPARSER)), ("*er*", methods.dense()), ("other", methods.hgc(**SPARSER))]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer, compressor = wrap(model, {**OPTIONS, **momentum}, attach={"policy": policy})
    assert [str(warning.message).count("'other'") for warning in caught] == [1]  # it can never match
    usual, sparser = Codecs({**OPTIONS, **momentum}), Codecs({**SPARSER, **momentum})
    dense = Codecs({**OPTIONS, **momentum, "min_elements": 10**6})
    codecs = {"matrix": usual, "bias": usual, "kernel": sparser, "other": dense}
    for step in reduced(optimizer, backward(model)):
        for name, p in model.named_parameters():
            close(p.grad, codecs[name].mean(name, everyones(name, p.shape, step)), what=f"{name}, {step}")
    sent = Counter({row.name: row.compressed_steps for row in compressor.report().tensors})
    assert (sent["matrix"], sent["kernel"], sent["other"], sent["bias"]) == (STEPS, STEPS, 0, 0)


class Language(torch.nn.Module):
    """A model with an embedding and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(80, 32)
        self.hidden = torch.nn.Linear(32, 64)
        self.out = torch.nn.Linear(64, 80)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.hidden(self.embed(tokens))))


def case_by_role() -> None:
    """Embeddings, the output layer, and what is small, are told by functions."""
    torch.manual_seed(0)
    model = Language()
    policy = [
        (hgc.embeddings(model), methods.dense()),
        (hgc.output_layer(model), methods.hgc(bits=8)),
        (lambda _, parameter: parameter.numel() < 2000, methods.dense(fp16=True)),
    ]
    compressor = hgc.Compression.hgc(model.named_parameters(), **OPTIONS, policy=policy)
    found = {slot.name: slot.method for slot in compressor._parameters.slots}
    assert found["embed.weight"] == methods.dense() and found["out.weight"] == methods.hgc(bits=8)
    assert found["out.bias"] == methods.hgc(bits=8) and found["hidden.bias"] == methods.dense(fp16=True)
    assert found["hidden.weight"] == compressor.method


def case_wrong_policies() -> None:
    for policy in ([("a", "dense")], [(3, methods.dense())], ["*.bias"], [methods.dense()]):
        raises(ValueError, ["policy", "pairs"], wrap, Given(), OPTIONS, attach={"policy": policy})
    momentum = [("matrix", methods.hgc(momentum=0.5))]
    raises(ValueError, ["policy", "momentum", "0.5"], wrap, Given(), OPTIONS, attach={"policy": momentum})


def case_change_of_method() -> None:
    """Density and bits may change in the middle of a run; what was kept leaves with the next steps."""
    model, codecs = Given(), Codecs(OPTIONS)
    policy = [("kernel", methods.dense())]
    optimizer, compressor = wrap(model, OPTIONS, attach={"policy": policy})
    dense = Codecs({**OPTIONS, "min_elements": 10**6})

    def run(steps: range) -> None:
        for step in reduced(optimizer, backward(model), steps):
            for name, p in model.named_parameters():
                source = dense if name == "kernel" else codecs
                close(p.grad, source.mean(name, everyones(name, p.shape, step)), what=f"{name}, step {step}")

    run(range(STEPS))
    compressor.method = methods.hgc(**SPARSER)
    codecs.method = methods.hgc(**SPARSER)
    for each in codecs.codecs.values():
        for codec in each:
            codec.method = codecs.method
    run(range(STEPS, 2 * STEPS))


@variants(
    plain={"sgd": {"lr": 0.1}},
    moved={"sgd": {"lr": 0.1, "momentum": 0.9}},
    nesterov={"sgd": {"lr": 0.1, "momentum": 0.9, "nesterov": True}},
    sum={"sgd": {"lr": 0.1, "momentum": 0.9}, "op": hvd.Sum},
    float64={"sgd": {"lr": 0.1, "momentum": 0.9}, "dtype": torch.float64},
    broken={"sgd": {"lr": 0.1, "momentum": 0.9}, "broken": True},
)
def case_change_to_dense(
    sgd: Any, op: Any = hvd.Average, dtype: torch.dtype = torch.float32, broken: bool = False
) -> None:
    """When compression is switched off, all that was kept is applied at once, and momentum goes on: the
    parameters are then those of a run without compression, and so they are when it is switched on again."""
    plain, model = Given(dtype=dtype), Given(dtype=dtype)
    usual = hvd.DistributedOptimizer(
        torch.optim.SGD(plain.parameters(), **sgd), named_parameters=plain.named_parameters(), op=op
    )
    inner = torch.optim.SGD(model.parameters(), **sgd)
    compressor = hgc.Compression.hgc(
        model.named_parameters(), **OPTIONS, momentum_from=inner if "momentum" in sgd else None
    )
    optimizer = hvd.DistributedOptimizer(
        inner, named_parameters=model.named_parameters(), compression=compressor, op=op
    )
    for step in range(8):
        if step == 3:
            compressor.method = methods.dense()
            if broken:
                (model.loss(step) * (float("nan") if hvd.rank() == 0 else 1.0)).backward()
                optimizer.synchronize()
                optimizer.zero_grad()
        if step == 6:
            compressor.method = methods.hgc(1.0, 32, min_elements=0, min_ndim=0, inflate=True)
        for one, its in ((plain, usual), (model, optimizer)):
            its.zero_grad()
            one.loss(step).backward()
            its.step()
        for name, p in plain.named_parameters():
            if step >= 3:
                close(getattr(model, name), p.detach().numpy(), bound=1e-5, what=f"{name}, step {step}")
        if step == 4:
            kept = compressor.state_dict()["tensors"]["matrix"]
            assert kept["residual"] is None and (kept["momentum"] is not None) == ("momentum" in sgd)


def case_change_of_method_on_one_rank() -> None:
    model = Given()
    optimizer, compressor = wrap(model, OPTIONS)
    for _ in reduced(optimizer, backward(model), range(2)):
        pass
    if hvd.rank() == 0:
        compressor.method = methods.hgc(**SPARSER)
        raises(ValueError, ["momentum"], setattr, compressor, "method", methods.hgc(momentum=0.9))
    else:
        compressor.method = methods.hgc(**OPTIONS)
    raises(ValueError, ["same settings", "density"], model.loss(3).backward)
