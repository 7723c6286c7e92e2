"""What may surround a backward pass: compilation, threads, checkpoints of activations; and the same again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import torch
from torch.utils.checkpoint import checkpoint

from tests.cases import variants

from .harness import OPTIONS, STEPS, tanh_network, values, wrap
from .reporting import generators
from .training import fingerprint

Forward = Callable[[torch.Tensor], torch.Tensor]
Run = Callable[[], object]


def network() -> torch.nn.Sequential:
    """Two large matrices, a small one and biases."""
    return tanh_network(17, 60, 40)


def method() -> dict[str, Any]:
    """Options of runs that end with the same bits. On more than two ranks all is compressed: the order of
    sums in Horovod's own allreduce depends on what it happens to fuse."""
    return OPTIONS if hvd.size() == 2 else {**OPTIONS, "min_elements": 0, "min_ndim": 0, "inflate": True}


def loss_of(forward: Forward, step: int, rank: int | None = None) -> torch.Tensor:
    inputs, targets = values("inputs", (16, 20), step, rank), values("targets", (16, 5), step, rank)
    given = torch.from_numpy(inputs).requires_grad_()  # checkpoints with use_reentrant need that
    return torch.nn.functional.mse_loss(forward(given), torch.from_numpy(targets))


def trained(
    model: torch.nn.Module | None = None,
    forward: Forward | None = None,
    *,
    call: Callable[[Run], object] = lambda run: run(),
    **horovod: Any,
) -> list[torch.Tensor]:
    """The model's parameters after each step with a compressor; `call` runs the passes."""
    model = network() if model is None else model
    optimizer, compressor = wrap(model, method(), **horovod)
    path = []
    for step in range(STEPS):
        call(lambda step=step: loss_of(forward or model, step).backward())
        optimizer.step()
        optimizer.zero_grad()
        path += [p.detach().clone() for p in model.parameters()]
    assert compressor.report().total.compressed_steps == STEPS
    return path


def assert_same(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    """Equal to the bit, after steps that changed all parameters."""
    count = len(one) // STEPS
    assert count and len(one) == len(other) and all(map(torch.equal, one, other))
    assert not any(map(torch.equal, one[:count], one[-count:])), "a parameter never changed"


@variants(before={"compiled": True}, after={"compiled": False}, groups={"compiled": True, "groups": 2})
def case_compiled(compiled: bool, **horovod: Any) -> None:
    """A compiled model; the optimizer gets the compiled one's parameters, or those of the model inside."""
    torch._dynamo.reset()  # what an earlier case compiled
    plain, inner = trained(**horovod), network()
    module, graphs = torch.compile(inner, backend="aot_eager"), torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    assert_same(trained(module if compiled else inner, module, **horovod), plain)
    assert graphs["unique_graphs"] == before + 1  # it was compiled, in one piece


def in_thread(run: Run) -> None:
    """Run in a new thread, and let its errors be ours."""
    trouble: list[BaseException] = []

    def target() -> None:
        try:
            run()
        except BaseException as error:
            trouble.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    if trouble:
        raise trouble[0]


@variants(plain={}, groups={"groups": 2})
def case_thread(**horovod: Any) -> None:
    """Backward passes in threads of their own, and then the whole training in one."""
    plain = trained(**horovod)
    assert_same(trained(call=in_thread, **horovod), plain)
    paths: list[list[torch.Tensor]] = []
    in_thread(lambda: paths.append(trained(**horovod)))
    assert_same(paths[0], plain)


@variants(reentrant={"reentrant": True}, saved={"reentrant": False})
def case_activation_checkpoint(reentrant: bool) -> None:
    """Layers whose activations are computed anew in the backward pass; with use_reentrant by a nested one."""
    model, runs = network(), [0]

    def counted(inputs: torch.Tensor) -> torch.Tensor:
        runs[0] += 1
        return model[:4](inputs)

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        return model[4](checkpoint(counted, inputs, use_reentrant=reentrant))

    assert_same(trained(model, forward), trained())
    assert runs[0] == 2 * STEPS


def case_nested_backward() -> None:
    """More nested backward passes than 60: autograd goes on in a thread of its own, where our hooks run."""
    model, threads = network(), set()
    model[0].weight.register_post_accumulate_grad_hook(lambda _: threads.add(threading.get_native_id()))

    def nested(inputs: torch.Tensor, depth: int) -> torch.Tensor:
        if depth == 0:
            return model(inputs)
        return checkpoint(nested, inputs, depth - 1, use_reentrant=True)

    assert_same(trained(model, lambda inputs: nested(inputs, 63)), trained())
    assert threads and threading.get_native_id() not in threads


@variants(
    plain={},
    everything={
        "momentum": 0.9,
        "nesterov": True,
        "masking": True,
        "clip": 3.0,
        "warmup_steps": 6,
        "bits": 1,
    },
)
def case_the_same_again(**options: Any) -> None:
    """Two runs of the same seeds end with the same bits, dropped steps included; so do the ranks' parameters.

    Nothing on the way draws from the user's generators.
    """
    ends = []
    for _ in range(2):
        model = network()
        before = generators()
        optimizer, compressor = wrap(model, {**method(), **options}, attach={"seed": 5})
        for step in range(20):
            optimizer.zero_grad()
            spoil = float("nan") if step == 8 and hvd.rank() == 0 else 1.0
            (spoil * loss_of(model, step)).backward()
            if step == 4:
                compressor.discard(optimizer)
                continue
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                if step != 8:
                    optimizer.step()
        state = compressor.state_dict()
        assert generators() == before
        assert state["tensors"]["0.weight"]["step"] == 18 and state["tensors"]["0.weight"]["residual"].any()
        hashes = hvd.allgather_object(fingerprint(model))
        assert len(set(hashes)) == 1, "the ranks' parameters differ"
        tensors = {
            (name, key): (kept.numpy().tobytes() if torch.is_tensor(kept) else kept)
            for name, each in state["tensors"].items()
            for key, kept in each.items()
            if key != "step"
        }
        ends.append((hashes, tensors))
    assert ends[0] == ends[1]
