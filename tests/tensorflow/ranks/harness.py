"""What the rank programs share: variables with given gradients, and codecs that tell what they become."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from hgc_horovod import Codec, methods
from tests import cases
from tests.cases import raises as raises

Shapes = Mapping[str, tuple[int, ...]]
SHAPES: Shapes = {"matrix": (48, 32), "bias": (40,), "kernel": (7, 9, 4, 8), "other": (30, 50)}
OPTIONS = {"density": 0.05, "bits": 4}
STEPS = 4  # enough for what was not sent to come back


def values(name: str, shape: Sequence[int], step: int = 0, rank: int | None = None) -> np.ndarray:
    return cases.values(name, shape, step, hvd.rank() if rank is None else rank)


def variables(shapes: Shapes = SHAPES, dtype: Any = tf.float32) -> list[tf.Variable]:
    return [tf.Variable(tf.zeros(shape, dtype), name=name) for name, shape in shapes.items()]


def name_of(variable: Any) -> str:
    return variable.name.split(":")[0]


def given(variables: Iterable[Any], step: int) -> list[tf.Tensor]:
    """This rank's gradients of these variables."""
    return [tf.constant(values(name_of(v), v.shape, step), v.dtype) for v in variables]


def loss_with(variables: Iterable[Any], gradients: Iterable[Any]) -> tf.Tensor:
    """A loss that has these gradients."""
    pairs = zip(variables, gradients, strict=True)
    return tf.add_n([tf.reduce_sum(tf.cast(v * g, tf.float32)) for v, g in pairs])


class Codecs:
    """One independent codec per rank and tensor, and what they say about the reduced gradients."""

    def __init__(self, options: Mapping[str, Any], ranks: Sequence[int] | None = None, seed: int = 0) -> None:
        self.method = methods.hgc(**options)
        self.ranks = range(hvd.size()) if ranks is None else ranks
        self.seed = seed
        self.codecs: dict[str, list[Codec]] = {}
        self.velocity: dict[str, np.ndarray] = {}
        self.steps = 0

    def reduced(self, name: str, shape: Sequence[int], step: int, scale: float = 1.0) -> np.ndarray:
        """What a float32 gradient of this step becomes; to be asked for once a step."""
        everyones = [values(name, shape, step, rank) for rank in self.ranks]
        n, world = everyones[0].size, len(everyones)
        if self.method.is_dense(shape, step):
            return self._dense(name, np.mean(everyones, 0, np.float64) * scale)
        if name not in self.codecs:
            self.codecs[name] = [Codec(self.method, n, name, self.seed, world_size=world) for _ in everyones]
            for codec in self.codecs[name]:
                codec.step = step
                if name in self.velocity:
                    codec.momentum = self.velocity[name].ravel() / scale
        codecs = self.codecs[name]
        payloads = [codec.encode(g.ravel()) for codec, g in zip(codecs, everyones, strict=True)]
        return codecs[0].decode_sum(payloads, factor=np.float32(scale / world)).reshape(shape)

    def residual(self, name: str) -> np.ndarray:
        """This rank's."""
        return self.codecs[name][list(self.ranks).index(hvd.rank())].residual

    def _dense(self, name: str, mean: np.ndarray) -> np.ndarray:
        momentum = self.method.feedback.momentum
        if not momentum:
            return mean
        self.velocity[name] = velocity = momentum * self.velocity.get(name, 0.0) + mean
        return mean + momentum * velocity if self.method.feedback.nesterov else velocity


def close(actual: Any, expected: np.ndarray, bound: float = 1e-6) -> None:
    """Equal but for the rounding of a sum, relative to the largest entry."""
    actual = np.asarray(actual, np.float64)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    off = np.abs(actual - expected).max(initial=0) / max(np.abs(expected).max(initial=0), 1e-30)
    assert off <= bound, f"off by {off} of the largest entry"


def equal_on_all_ranks(arrays: Iterable[Any], name: str, process_set: Any = hvd.global_process_set) -> None:
    """Bitwise."""
    flat = np.concatenate([np.asarray(array).ravel() for array in arrays])
    everyones = hvd.allgather(tf.constant(flat[None]), name=name, process_set=process_set).numpy()
    for other in everyones:
        assert np.array_equal(other, flat)
