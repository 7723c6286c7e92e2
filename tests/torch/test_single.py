"""The compressor in one process, without a launcher: arguments, and training on one rank."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import numpy as np
import pytest
import torch

import hgc_horovod.torch as hgc
from hgc_horovod import Codec, kernels, methods
from hgc_horovod.kernels.native import NativeKernels
from hgc_horovod.torch import agreement, tensors

from .ranks.harness import OPTIONS, Codecs, Given, backward, check, reduced, values, wrap
from .ranks.misuse import WRONG


def test_before_init() -> None:
    with pytest.raises(ValueError, match=r"hvd\.init"):
        hgc.Compression.hgc(torch.nn.Linear(40, 30).named_parameters())


@pytest.mark.parametrize("label", WRONG)
def test_wrong_argument(alone: None, label: str) -> None:
    words, call = WRONG[label]
    with pytest.raises(ValueError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("sgd", [{"momentum": 0.9, "weight_decay": 0.1}, {"momentum": 0.9, "nesterov": True}])
def test_one_rank_trains_as_without(alone: None, sgd: dict[str, Any]) -> None:
    """Horovod reduces nothing on one rank: the optimizer keeps its momentum, and nothing is compressed."""
    paths = []
    for compress in (True, False):
        model = Given()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **sgd)
        if compress:
            compressor = hgc.Compression.hgc(model.named_parameters(), momentum_from=optimizer)
            optimizer = hvd.DistributedOptimizer(
                optimizer, named_parameters=model.named_parameters(), compression=compressor
            )
            assert {key: optimizer.param_groups[0][key] for key in sgd} == sgd
        for step in range(4):
            optimizer.zero_grad()
            model.loss(step).backward()
            optimizer.step()
        paths.append([p.detach() for p in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*paths, strict=True))
    assert compressor.report().total.steps == 0 and "ratio 1.0" in str(compressor.report())


def test_one_elastic_rank_compresses(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an elastic job Horovod reduces on one rank, too, since others may join later."""
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    model, codecs = Given(), Codecs(OPTIONS)
    optimizer, compressor = wrap(model, OPTIONS)
    for step in reduced(optimizer, backward(model)):
        check(model, codecs, step)
    assert compressor.report().total.compressed_steps == 4


def test_momentum_of_the_method_beside_an_optimizer_without(alone: None) -> None:
    model = Given()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compressor = hgc.Compression.hgc(model.named_parameters(), momentum=0.9, optimizer=optimizer)
    assert compressor.method == methods.hgc(momentum=0.9)


def test_from_method(alone: None) -> None:
    method = methods.hgc(0.02, 2, clip=1.0)
    compressor = hgc.Compression.from_method(method, Given().named_parameters(), name="mine", seed=4)
    assert compressor.method == method
    assert repr(compressor) == "Compression.hgc(density=0.02, bits=2): 3 of 4 tensors, 5,052 of 5,092 entries"


def test_shared_parameter(alone: None) -> None:
    """A parameter under two names is one tensor, under its first name."""
    weight = torch.nn.Parameter(torch.ones(40, 30))
    compressor = hgc.Compression.hgc([("encoder", weight), ("decoder", weight)], **OPTIONS)
    assert "1 of 1 tensors" in repr(compressor)


def test_group_with_a_missing_gradient(alone: None) -> None:
    compressor = hgc.Compression.hgc(Given().named_parameters())
    with pytest.raises(ValueError, match="groups="):
        compressor.compress(None)  # what Horovod's grouped path hands over for such a parameter


def test_given_gradients(alone: None) -> None:
    """The tests' own model: its gradients are to the bit the values that the codecs are fed with."""
    model, codec = Given(), Codec(methods.hgc(**OPTIONS), 48 * 32)
    model.loss(3).backward()
    assert np.array_equal(model.matrix.grad, values("matrix", (48, 32), 3))
    assert codec.encode(model.matrix.grad.numpy().ravel()).size == codec.method.payload_bytes(48 * 32)


def test_denormals_count_where_torch_flushes_them() -> None:
    gradient = np.zeros(4000, np.float32)  # fewer nonzero entries than are sent
    gradient[::1000] = [1.0, 1e-40, -1e-45, -2.0]
    expected = Codec(methods.hgc(), 4000, kernels=kernels.get("reference")).encode(gradient)
    assert torch.set_flush_denormal(True)
    try:
        for path in ("portable", None):
            codec = Codec(methods.hgc(), 4000, kernels=NativeKernels(path=path))
            payload, total = codec.encode(gradient), codec.decode_sum([expected])
            assert np.array_equal(payload, expected) and np.count_nonzero(total.view(np.int32)) == 4
    finally:
        torch.set_flush_denormal(False)


def test_negative_views_and_weights_that_require_gradients() -> None:
    ones = torch.ones(3)
    entries, own = tensors.entries(torch._neg_view(ones))
    assert np.asarray(entries).tolist() == [-1] * 3 and not own
    entries, own = tensors.entries(torch.nn.Parameter(ones))
    assert own and entries.address == ones.data_ptr()


def test_memory_that_is_not_aligned_is_copied() -> None:
    odd = torch.from_numpy(np.arange(13, dtype=np.uint8)[1:].view(np.float32))
    entries, own = tensors.entries(odd)
    assert not own and np.array_equal(np.asarray(entries), odd.numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_blocks_give_the_bytes_and_sums_of_arrays(dtype: torch.dtype, name: str) -> None:
    gradient = torch.randn(3000, generator=torch.Generator().manual_seed(1)).to(dtype)
    codec, other = (Codec(methods.hgc(), 3000, kernels=kernels.get(name)) for _ in range(2))
    block, _ = tensors.entries(gradient)
    out = np.empty(methods.hgc().payload_bytes(3000), np.uint8)
    payload = codec.encode(block, block, 0.5, out)
    assert payload is out
    array = gradient.float().numpy()
    assert np.array_equal(other.encode(array, array, 0.5), payload)
    assert other.encode(array, out=np.empty(7, np.uint8)).size == payload.size
    summed, target = other.decode_sum([payload]), torch.empty(3000, dtype=dtype)
    codec.decode_gathered(tensors.payload(torch.from_numpy(payload)), 1, tensors.entries(target)[0])
    assert np.array_equal(target.float().numpy(), torch.from_numpy(summed).to(dtype).float().numpy())
    with pytest.raises(ValueError, match="gradient"):
        codec.encode(tensors.entries(gradient[1:])[0])
    for wrong in (np.empty(2 * out.size, np.uint8)[::2], out.view(np.int8), out.reshape(1, -1)):
        with pytest.raises(ValueError, match="out must be contiguous"):
            codec.encode(array, out=wrong)


def test_what_may_still_be_sent_is_not_written_again(alone: None) -> None:
    """A gradient that Horovod compressed and dropped, as its load_state_dict does."""
    weight = torch.nn.Parameter(torch.ones(40, 30))
    compressor = hgc.Compression.hgc([("weight", weight)], **OPTIONS)
    weight.grad = torch.randn(40, 30)
    numbers, context = compressor.compress(weight.grad)
    assert context is not None
    sent = compressor._parameters.slots[0].payload
    assert sent is not None
    before = sent.tensor.clone()
    compressor.decompress(numbers, context)
    compressor._step.unapplied = False  # there is no optimizer here, which would say so
    weight.grad = torch.randn(40, 30)
    again, _ = compressor.compress(weight.grad)
    kept = compressor._parameters.slots[0].payload
    assert again is numbers and kept is sent and not torch.equal(sent.tensor, before)
    before, residual = sent.tensor.clone(), compressor._parameters.slots[0].codec.residual.copy()
    third, _ = compressor.compress(weight.grad)
    assert third is not numbers and torch.equal(sent.tensor, before)
    # It was taken back first, and then encoded again.
    assert np.allclose(compressor._parameters.slots[0].codec.residual, residual, atol=1e-6)


def test_a_world_that_has_grown(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Size and rank are asked for anew in every step, as they change in an elastic job."""
    weight = torch.nn.Parameter(torch.ones(40, 30))
    compressor = hgc.Compression.hgc([("weight", weight)], **OPTIONS)
    sent: list[torch.Tensor] = []

    def gather(payload: torch.Tensor, *_: Any) -> torch.Tensor:
        sent.append(payload)
        return payload.repeat(compressor.process_set.size())  # as if every rank had sent the same

    monkeypatch.setattr("hgc_horovod.torch.payloads.hvd.allgather_async", gather)
    monkeypatch.setattr("hgc_horovod.torch.payloads.hvd.synchronize", lambda handle: handle)
    monkeypatch.setattr(compressor._step.agreement, "compared", True)
    for world in (1, 2):
        monkeypatch.setattr(compressor.process_set, "size", lambda world=world: world)
        weight.grad = torch.randn(40, 30)
        numbers, context = compressor.compress(weight.grad)
        numbers[1] /= world  # Average over the world
        assert compressor.decompress(numbers, context) is weight.grad
        assert weight.grad.isfinite().all() and weight.grad.count_nonzero()
        assert np.array_equal(context.taken.codec.decode_sum([sent[-1].numpy()]), weight.grad.numpy().ravel())


def test_a_step_that_others_never_finish(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that is loaded in mid-step does not wait for ever for what no other rank sends."""
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    monkeypatch.setattr(agreement, "PATIENCE", 0.1)
    model = Given()
    optimizer, compressor = wrap(model, OPTIONS)
    model.loss(0).backward()
    saved = optimizer.state_dict()
    with monkeypatch.context() as patch:
        patch.setattr(hvd, "poll", lambda handle: False)
        with pytest.raises(RuntimeError, match="discard"):
            optimizer.load_state_dict(saved)
    optimizer.load_state_dict(saved)
    assert not compressor._exchange.flying
