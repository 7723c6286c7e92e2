"""Two hundred steps of training: the ranks stay equal to the bit, and the model learns."""

from __future__ import annotations

from typing import Any

import numpy as np

import hgc_horovod.mpi as hgc
from hgc_horovod import methods
from tests import cases
from tests.cases import variants

from .harness import COMM, RANK, equal_on_all_ranks

STEPS, CLASSES, WIDTH = 200, 10, 64
SHAPES = {
    "hidden": (64, WIDTH),
    "hidden bias": (WIDTH,),
    "output": (WIDTH, CLASSES),
    "output bias": (CLASSES,),
}
PATTERNS = cases.values("patterns", (CLASSES, 64), 0, 0)


def batch(step: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Images that are a class's pattern and noise: no two ranks or steps see the same."""
    labels = np.random.default_rng([step, rank]).integers(0, CLASSES, 16)
    return PATTERNS[labels] + cases.values("noise", (16, 64), step, rank), labels


def forward(weights: dict[str, np.ndarray], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hidden activations, and class probabilities."""
    hidden = np.maximum(x @ weights["hidden"] + weights["hidden bias"], 0)
    logits = hidden @ weights["output"] + weights["output bias"]
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return hidden, odds / odds.sum(1, keepdims=True)


def gradients(weights: dict[str, np.ndarray], x: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Of the mean cross-entropy."""
    hidden, probabilities = forward(weights, x)
    error = (probabilities - np.eye(CLASSES, dtype=np.float32)[labels]) / np.float32(len(x))
    back = error @ weights["output"].T * (hidden > 0)
    return {
        "hidden": x.T @ back,
        "hidden bias": back.sum(0),
        "output": hidden.T @ error,
        "output bias": error.sum(0),
    }


@variants(
    plain={"lr": 0.2},
    warm_up={"warmup_steps": 60, "momentum": 0.9, "nesterov": True},
    two_bits={"bits": 2, "dense_steps": 5, "momentum": 0.9, "clip": 5.0},
    at_once={"momentum": 0.9, "flying": True},
)
def case_training(lr: float = 0.05, flying: bool = False, **options: Any) -> None:
    method = methods.hgc(**{"density": 0.02, "min_elements": 512, **options})
    weights = {name: 0.1 * cases.values(name, shape, 0, 0) for name, shape in SHAPES.items()}
    with hgc.Reducer(COMM, method, SHAPES) as reduce:
        for step in range(STEPS):
            found = gradients(weights, *batch(step, RANK))
            if flying:
                requests = {name: reduce.iallreduce(name, gradient) for name, gradient in found.items()}
                means = {name: request.wait() for name, request in reversed(requests.items())}
            else:
                means = {name: reduce.allreduce(name, gradient) for name, gradient in found.items()}
            for name, mean in means.items():
                weights[name] -= np.float32(lr) * mean
        assert reduce.report().total.compressed_steps >= STEPS - 5
    equal_on_all_ranks(np.concatenate([weight.reshape(-1) for weight in weights.values()]))
    x, labels = batch(10**6, 0)
    accuracy = (forward(weights, x)[1].argmax(1) == labels).mean()
    assert accuracy > 0.9, accuracy
