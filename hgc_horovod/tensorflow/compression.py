"""The constructors that a user calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import horovod.tensorflow as hvd

from .. import arguments
from .. import policy as policies
from ..core import methods
from ..core.method import Method
from .compressor import Compressor

_created = itertools.count()


class Compression:
    """Compressors for Horovod's `DistributedGradientTape`, `DistributedOptimizer` and `allreduce`."""

    @staticmethod
    def hgc(
        variables: Sequence[Any] | None = None, density: float = 0.01, bits: int = 4, **options: Any
    ) -> Compressor:
        """Hybrid gradient compression: the `density` largest entries of each gradient, `bits` bits each.

        One compressor serves one model's tape or optimizer. `options` are those of `Compression.from_method`
        (`policy`, `process_set`, …) and of `hgc_horovod.methods.hgc` (`momentum`, `warmup_steps`, …).
        """
        attach = {key: options.pop(key) for key in _ATTACH if key in options}
        return Compression.from_method(methods.hgc(density, bits, **options), variables, **attach)

    @staticmethod
    def from_method(
        method: Method,
        variables: Sequence[Any] | None = None,
        *,
        policy: policies.Policy = (),
        loss_scale: Callable[[], Any] | None = None,
        process_set: Any = None,
        name: str | None = None,
        seed: int = 0,
    ) -> Compressor:
        """A compressor that sends gradients as `method` says.

        Args:
            method: what is sent: one of `hgc_horovod.methods`, for example `methods.hgc(density=0.01)`, or
                any other of their parts. Where it has a momentum, the optimizer must have none. The parts of
                the hybrid method run without Python, others through `tf.numpy_function`.
            variables: those that are trained, `model.trainable_variables`. What is kept of each is then there
                from the start, and the ranks' settings can be compared as a whole; else it is created when
                its first gradient comes.
            policy: other methods for some variables, as pairs of a name pattern ("*bias") or a function of
                name and variable, and a method. The first pair that matches counts.
            loss_scale: with mixed precision, a function that returns the factor by which the loss was
                multiplied: `lambda: optimizer.loss_scale` with Keras's LossScaleOptimizer. What is kept is
                then free of that factor, and as it was before a step that the optimizer drops.
            process_set: the one that Horovod is given, where one is given.
            name: a prefix for the names of collectives; by default this process's how-manieth compressor it
                is, so ranks that create compressors in different orders must give one.
            seed: keys the random choices of methods that make any.

        Raises:
            ValueError: an argument is wrong; the message names it.
        """
        process_set = arguments.checked(hvd, method, seed, process_set, name)
        policies.check(policy, method)
        if loss_scale is not None and not callable(loss_scale):
            raise ValueError(f"loss_scale must be a function that returns the factor; got {loss_scale!r}")
        return Compressor(
            method,
            variables=variables,
            policy=policy,
            process_set=process_set,
            loss_scale=loss_scale,
            prefix=name if name is not None else f"hgc.{next(_created)}",
            seed=seed,
        )


_ATTACH = ("policy", "loss_scale", "process_set", "name", "seed")
