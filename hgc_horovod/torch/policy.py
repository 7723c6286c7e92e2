"""Matchers for a policy by a parameter's role."""

from __future__ import annotations

from typing import Any

import torch

from ..policy import Matcher


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
