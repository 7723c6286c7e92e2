"""Which parameter is sent by which method."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch

from ..core.method import Method

Matcher = Callable[[str, torch.Tensor], bool]
Policy = Sequence[tuple[str | Matcher, Method]]


def embeddings(model: torch.nn.Module) -> Matcher:
    """Matches the weights of the model's embeddings."""
    return _owned_by(
        module
        for module in model.modules()
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))
    )


def output_layer(model: torch.nn.Module) -> Matcher:
    """Matches the parameters of the model's last module that has a weight of two or more dimensions, which is
    the output layer where modules are registered in the order in which they are used."""
    last = [
        module
        for module in model.modules()
        if any(parameter.dim() > 1 for parameter in module.parameters(recurse=False))
    ]
    return _owned_by(last[-1:])


def _owned_by(modules: Any) -> Matcher:
    owned = {id(parameter) for module in modules for parameter in module.parameters(recurse=False)}
    return lambda name, parameter: id(parameter) in owned


def check(policy: Policy, default: Method) -> list[tuple[str | Matcher, Method]]:
    """The policy as a list; ValueError where it is none."""
    pairs = list(policy)
    for pair in pairs:
        if not (
            isinstance(pair, tuple)
            and len(pair) == 2
            and (isinstance(pair[0], str) or callable(pair[0]))
            and isinstance(pair[1], Method)
        ):
            raise ValueError(
                "policy must be a list of pairs: a name pattern such as '*.bias', or a function of a name "
                f"and a parameter, and a hgc_horovod.Method; got {pair!r}"
            )
        feedback = pair[1].feedback
        if feedback.momentum and feedback.momentum != default.feedback.momentum:
            raise ValueError(
                f"policy: momentum is one for all tensors; got {feedback.momentum} for {pair[0]!r} and "
                f"{default.feedback.momentum} elsewhere"
            )
    return pairs


def methods_for(
    names: Sequence[tuple[str, torch.Tensor]], policy: list[tuple[str | Matcher, Method]], default: Method
) -> list[Method]:
    """The method of each parameter: of the first entry that matches its name, or the default.

    Entries that match no parameter are warned of.
    """
    chosen = [
        next((index for index, (what, _) in enumerate(policy) if _matches(what, *named)), None)
        for named in names
    ]
    unused = [what for index, (what, _) in enumerate(policy) if index not in chosen]
    if unused:
        warnings.warn(
            f"policy: no parameter is left for {', '.join(map(repr, unused))}: none matches, or entries "
            "above take them all",
            stacklevel=2,
        )
    return [default if index is None else policy[index][1] for index in chosen]


def _matches(what: str | Matcher, name: str, parameter: torch.Tensor) -> bool:
    return fnmatchcase(name, what) if isinstance(what, str) else bool(what(name, parameter))
