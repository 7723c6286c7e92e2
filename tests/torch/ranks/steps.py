"""Steps that are not one backward pass and one step(): doubled, discarded, left over, in parts."""

from __future__ import annotations

import warnings
from typing import Any

import horovod.torch as hvd
import torch

from tests.cases import variants

from .harness import (
    OPTIONS,
    SHAPES,
    STEPS,
    Codecs,
    Given,
    accumulating,
    backward,
    check,
    close,
    everyones,
    raises,
    reduced,
    slot,
    values,
    wrap,
)
from .nonfinite import EXTRA, UNDONE, memory


@variants(average={}, sum={"op": hvd.Sum}, groups={"groups": 2}, momentum={"sgd": {"momentum": 0.9}})
def case_synchronized_twice(sgd: Any = None, **horovod: Any) -> None:
    """step() after synchronize(), without skip_synchronize: compressed once, and clipping counts."""
    paths = []
    for naive in (True, False):
        model = Given()
        optimizer, compressor = wrap(model, OPTIONS, sgd, **horovod)
        for step in range(STEPS):
            optimizer.zero_grad()
            model.loss(step).backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if naive:
                with warnings.catch_warnings(record=True):
                    optimizer.step()  # Horovod warns of it
            else:
                with optimizer.skip_synchronize():
                    optimizer.step()
        assert slot(compressor, "matrix").step == STEPS
        paths.append([p.detach().clone() for p in model.parameters()])
    for one, other in zip(*paths, strict=True):
        close(one, other.numpy(), bound=1e-5)
        # Three ranks' dense tensors Horovod adds in an order that differs from run to run.
        assert torch.equal(one, other) or hvd.size() > 2


@variants(plain={}, momentum={"momentum": 0.9}, accumulation={"passes": 2}, groups={"groups": 2})
def case_discard(passes: int = 1, groups: int | None = None, **options: Any) -> None:
    """A backward pass is dropped on all ranks, and the steps after it are as if it had not been."""
    options = {**OPTIONS, **options}
    model, codecs = Given(), Codecs(options)
    optimizer, compressor = wrap(model, options, backward_passes_per_step=passes, groups=groups)

    fill, given = accumulating(model, passes)
    for step in reduced(optimizer, fill, range(2)):
        check(model, codecs, step, given=given)
    before = {name: memory(compressor, name) for name in SHAPES}
    optimizer.zero_grad()
    model.loss(EXTRA).backward()  # with two passes a step, before the step is complete
    compressor.discard(optimizer)
    assert all(p.grad is None for p in model.parameters())
    for name, was in before.items():
        for key, now in memory(compressor, name).items():
            close(torch.from_numpy(now), was[key], bound=UNDONE, what=f"{key} of {name}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # there is nothing to warn of
        for step in reduced(optimizer, fill, range(2, 5)):
            for name, p in model.named_parameters():
                expected = codecs.mean(name, given(name, p.shape, step))
                close(p.grad, expected, bound=UNDONE, what=f"{name}, step {step}")


def case_discard_on_one_rank() -> None:
    model = Given()
    optimizer, compressor = wrap(model, OPTIONS)
    model.loss(0).backward()
    if hvd.rank() == 0:
        raises(ValueError, ["discard", "every rank"], compressor.discard, optimizer)
    else:
        raises(ValueError, ["discard", "every rank"], optimizer.step)


def case_discard_too_late() -> None:
    model = Given()
    optimizer, compressor = wrap(model, OPTIONS)
    other, _ = wrap(Given(), OPTIONS)
    model.loss(0).backward()
    optimizer.synchronize()
    raises(ValueError, ["too late", "synchronize"], compressor.discard, optimizer)
    raises(ValueError, ["optimizer"], compressor.discard, other)


def case_unapplied_step() -> None:
    """Whoever reduces gradients and never steps is told that what they carried is gone."""
    model = Given()
    optimizer, _ = wrap(model, OPTIONS)
    model.loss(0).backward()
    optimizer.synchronize()
    optimizer.zero_grad()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.loss(1).backward()
        optimizer.step()
    assert any("discard" in str(warning.message) for warning in caught)


@variants(passes_2={"passes": 2}, passes_4={"passes": 4})
def case_leftover_batch(passes: int) -> None:
    """The last step of an epoch has fewer passes than the others."""
    model, codecs = Given(), Codecs(OPTIONS)
    optimizer, _ = wrap(model, OPTIONS, backward_passes_per_step=passes)
    for count in (passes, 1, passes, passes - 1):
        for _ in range(count):
            model.loss(count).backward()
        optimizer.synchronize()
        for name, p in model.named_parameters():
            gradients = [count * gradient for gradient in everyones(name, p.shape, count)]
            close(p.grad, codecs.mean(name, gradients), what=name)
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()


def case_layer_in_some_passes() -> None:
    """Ranks use a layer in different ones of two passes, and rank 0 not at all in the last step."""
    model, codecs = Given(), Codecs(OPTIONS)
    optimizer, _ = wrap(model, OPTIONS, backward_passes_per_step=2)
    world = hvd.size()
    for step in range(STEPS):
        last = step == STEPS - 1
        for turn in range(2):
            used = turn == hvd.rank() % 2 and not (last and hvd.rank() == 0)
            model.loss(step, skip=() if used else ("other",)).backward()
        optimizer.synchronize()
        for name, p in model.named_parameters():
            weights = (
                [2.0] * world if name != "other" else [0.0 if last and not r else 1.0 for r in range(world)]
            )
            gradients = [w * g for w, g in zip(weights, everyones(name, p.shape, step), strict=True)]
            expected = codecs.mean(name, [g.astype("float32") for g in gradients])
            close(p.grad, expected, what=f"{name}, step {step}")
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()


def case_two_compressors() -> None:
    """Two optimizers in turn, as of a GAN, whose models have the same names."""
    models = [Given(), Given()]
    codecs = [Codecs(OPTIONS), Codecs({**OPTIONS, "bits": 2})]
    pairs = [wrap(models[0], OPTIONS), wrap(models[1], {**OPTIONS, "bits": 2})]
    for step in range(STEPS):
        for model, (optimizer, _), each in zip(models, pairs, codecs, strict=True):
            for _ in reduced(optimizer, backward(model), [step]):
                check(model, each, step)


def case_retained_graph() -> None:
    """Two losses, one after the other, through one graph: the second pass waits for the step in between."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.from_numpy(values("weight", (40, 30), rank=0)))
    model = torch.nn.ParameterDict({"weight": weight})
    optimizer, compressor = wrap(model, OPTIONS)
    loss = (weight * torch.from_numpy(values("g", (40, 30)))).sum()
    for _ in range(2):
        loss.backward(retain_graph=True)
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            pass
        optimizer.zero_grad()
    assert slot(compressor, "weight").step == 2


@variants(
    cleared={"set_to_none": True}, zeroed={"set_to_none": False}, weights={"shapes": {"matrix": (48, 32)}}
)
def case_dropped_by_the_user(set_to_none: bool = True, shapes: Any = SHAPES) -> None:
    """After a step that was reduced and not applied, a rank without data takes part with zeros."""
    model = Given(shapes)
    optimizer, compressor = wrap(model, OPTIONS)
    model.loss(0).backward()
    optimizer.synchronize()
    model.zero_grad(set_to_none)
    if hvd.rank() == 0:
        model.loss(1).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer.step()
    assert slot(compressor, "matrix").step == 2
    same_on_all_ranks(model)


def case_exception_in_a_step() -> None:
    """After a step() that raised, the next step's gradients are reduced."""
    model = Given()
    optimizer, compressor = wrap(model, OPTIONS)

    def refuse(*_: Any) -> None:
        raise RuntimeError("refused")

    for step in range(2):
        model.zero_grad(set_to_none=step == 0)
        model.loss(step).backward()
        optimizer.synchronize()
        hook = optimizer.register_step_pre_hook(refuse)
        raises(RuntimeError, ["refused"], optimizer.step)
        hook.remove()
        model.zero_grad(set_to_none=step == 0)
        model.loss(step).backward()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer.step()
        same_on_all_ranks(model)
    assert slot(compressor, "matrix").step == 4


@variants(discard={"way": "discard"}, load={"way": "load"})
def case_exception_in_a_backward_pass(way: str) -> None:
    """What was on its way is dropped by discard(), or where the optimizer's checkpoint is loaded again."""
    model, codecs = Given(), Codecs(OPTIONS)
    optimizer, compressor = wrap(model, OPTIONS)
    for step in reduced(optimizer, backward(model), range(2)):
        check(model, codecs, step)
    before, saved = compressor.state_dict(), optimizer.state_dict()
    optimizer.zero_grad()
    model.loss(EXTRA, skip=["matrix"]).backward()  # and then something goes wrong
    raises(ValueError, ["discard"], compressor.state_dict)
    if way == "discard":
        compressor.discard(optimizer)
    else:
        optimizer.load_state_dict(saved)
        compressor.load_state_dict(before)
    for step in reduced(optimizer, backward(model), range(2, 4)):
        check(model, codecs, step)


def same_on_all_ranks(model: torch.nn.Module) -> None:
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    for other in hvd.allgather(flat[None], name="weights"):
        assert torch.equal(other, flat)
