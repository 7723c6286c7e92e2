"""Process sets as the groups of model parallelism: disjoint ones train models of their own meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import horovod.torch as hvd
import numpy as np
import torch

from tests.cases import variants

from .harness import OPTIONS, SHAPES, STEPS, Codecs, Given, Shapes, backward, check, reduced, values, wrap
from .training import fingerprint

# The same names with other shapes, another method and another number of steps.
SIDES = (
    ("left", SHAPES, OPTIONS, STEPS),
    ("right", {"matrix": (60, 25), "bias": (7,), "third": (50, 30)}, {"density": 0.02, "bits": 2}, STEPS + 3),
)


class Side(NamedTuple):
    """What a set's members train."""

    model: Given
    optimizer: Any
    compressor: Any
    shapes: Shapes
    codecs: Codecs
    steps: int
    subset: Any
    members: list[int]


def split(last: bool) -> tuple[list[int], list[int]]:
    """Two disjoint sets that are all ranks; of three ranks, the last or the first one is alone."""
    ranks, at = list(range(hvd.size())), -1 if last else 1
    return ranks[:at], ranks[at:]


@variants(
    last_alone={"last": True},
    first_alone={"last": False},
    local={"last": True, "local": True},
    momentum={"last": False, "local": True, "momentum": 0.9},
)
def case_disjoint(last: bool, local: bool = False, **options: float) -> None:
    """Each set's gradients are what codecs of its members say. A rank's other model, whose set it is not
    in, stays as it is; with `local` steps on it, it is trained as by plain SGD."""
    groups = split(last)
    subsets = [hvd.add_process_set(members) for members in groups]
    sides = []
    for (label, shapes, method, steps), subset, members in zip(SIDES, subsets, groups, strict=True):
        model, method = Given(shapes), {**method, **options}
        attach = {"process_set": subset, "name": label}
        optimizer, compressor = wrap(model, method, attach=attach, process_set=subset)
        codecs = Codecs(method, world=len(members))
        sides.append(Side(model, optimizer, compressor, shapes, codecs, steps, subset, members))
    mine, other = sorted(sides, key=lambda side: hvd.rank() not in side.members)
    twin = Given(other.shapes)
    plain = torch.optim.SGD(twin.parameters(), lr=0.1)
    for step in reduced(other.optimizer, backward(other.model), range(STEPS)) if local else ():
        plain.zero_grad()
        twin.loss(step).backward()
        for name, p in other.model.named_parameters():
            assert torch.equal(p.grad, twin.get_parameter(name).grad), (name, step)
        plain.step()

    def given(name: str, shape: Sequence[int], step: int) -> list[np.ndarray]:
        return [values(name, shape, step, rank) for rank in mine.members]

    for step in reduced(mine.optimizer, backward(mine.model), range(mine.steps)):
        check(mine.model, mine.codecs, step, given=given)
    flat = torch.cat([p.detach().ravel() for p in mine.model.parameters()])
    # Named: Horovod's own names count a rank's operations, and the sets make different numbers of them.
    everyones = hvd.allgather(flat, name="parameters", process_set=mine.subset)
    assert (everyones.view(len(mine.members), -1) == flat).all(), "the members' parameters differ"
    assert mine.compressor.report().total.compressed_steps == mine.steps
    assert other.compressor.report().total.steps == 0
    assert fingerprint(other.model) == fingerprint(twin)
    assert (fingerprint(twin) != fingerprint(Given(other.shapes))) == local
    assert local or all(p.grad is None for p in other.model.parameters())
    hvd.barrier()
    for subset in subsets:
        hvd.remove_process_set(subset)
