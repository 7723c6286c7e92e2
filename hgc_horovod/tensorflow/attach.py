"""Where Horovod's TensorFlow wrappers meet a compressor.

Horovod hands gradients to a compressor one by one, and never says whose they are. But it makes one function
for each tape and optimizer that reduces all gradients of a step, and is given their variables. That function
is wrapped here, where the compressor is one of ours, to tell it which variable each gradient belongs to. And
what Horovod's optimizers would apply without having reduced it is refused.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import horovod._keras
import horovod.tensorflow as hvd
import tensorflow as tf

from .compressor import Compressor

Reduce = Callable[..., Any]


def register() -> None:
    """Once, when the package is imported."""
    hvd._make_allreduce_grads_fn = _telling_variables(hvd._make_allreduce_grads_fn)
    keras = horovod._keras
    keras.create_distributed_optimizer = _checking_optimizers(keras.create_distributed_optimizer)


def _telling_variables(make: Callable[..., Reduce]) -> Callable[..., Reduce]:
    """Horovod's maker of functions that reduce a step's gradients, for our compressors."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Reduce:
        given = signature.bind(*args, **kwargs).arguments
        compressor = given["compression"]
        if not isinstance(compressor, Compressor):
            return make(*args, **kwargs)
        if given["op"] == hvd.Adasum:
            raise ValueError("op=hvd.Adasum cannot be combined with compression; use hvd.Average or hvd.Sum")
        if given["process_set"].process_set_id != compressor.process_set.process_set_id:
            raise ValueError("process_set must be the same for the compressor and for Horovod's function")
        settings = tuple(_hashable(value) for value in given.values())

        def reduce(gradients: Any, variables: Any = None, use_generic_names: bool = False) -> Any:
            """In a graph."""
            if given["sparse_as_dense"]:
                gradients = [_dense(gradient) for gradient in gradients]
            compressor.compare_once(gradients, variables)
            with compressor.reducing(gradients, variables):
                reduced = make(*args, **kwargs)(gradients, variables, use_generic_names)
                return compressor.conclude(gradients, reduced, variables)

        def reduce_eagerly(gradients: Any, variables: Any = None, use_generic_names: bool = False) -> Any:
            if not tf.executing_eagerly():
                return reduce(gradients, variables, use_generic_names)
            key = (settings, tuple(variable.ref() for variable in variables), use_generic_names)
            if key not in compressor.tracing.functions:  # or every step would trace its own
                compressor.tracing.functions[key] = tf.function(
                    lambda gradients: reduce(gradients, variables, use_generic_names), autograph=False
                )
            return compressor.tracing.functions[key](gradients)

        return reduce_eagerly

    return made


def _hashable(value: Any) -> Any:
    """Groups are lists of lists of variables."""
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return value.ref() if callable(getattr(value, "ref", None)) else value


def _dense(gradient: Any) -> Any:
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def _checking_optimizers(create: Callable[..., Any]) -> Callable[..., Any]:
    """Horovod's maker of Keras optimizers, which refuses with our compressors what it would not reduce."""
    signature = inspect.signature(create)

    @functools.wraps(create)
    def created(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        if not isinstance(given["compression"], Compressor):
            return create(*args, **kwargs)
        if _is_keras_3(given["optimizer"]):
            raise ValueError(
                "optimizer is one of Keras 3, which Horovod 0.28.1 wraps without ever reducing a gradient; "
                "set TF_USE_LEGACY_KERAS=1 before TensorFlow is imported (pip install tf-keras), or train "
                "with hvd.DistributedGradientTape and apply the gradients that it returns"
            )
        if given["compression"].drops_steps and given.get("backward_passes_per_step", 1) > 1:
            raise ValueError(
                "loss_scale cannot be combined with backward_passes_per_step > 1: each rank's optimizer "
                "would judge the passes in between, which are not reduced, and the ranks would part"
            )
        optimizer = create(*args, **kwargs)
        kind = type(optimizer)  # which Horovod makes anew for each
        kind.apply_gradients = _checked(kind.apply_gradients)
        return optimizer

    return created


def _is_keras_3(optimizer: Any) -> bool:
    return any(base.__module__.split(".")[0] == "keras" for base in type(optimizer).__mro__)


def _checked(apply: Callable[..., Any]) -> Callable[..., Any]:
    """An optimizer's `apply_gradients`, for gradients that it has reduced."""

    @functools.wraps(apply)
    def checked(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not optimizer._aggregated_gradients:  # Horovod's own mark, of the last compute_gradients
            raise ValueError(
                "apply_gradients was given gradients that nobody has reduced: Horovod's Keras optimizers "
                "reduce in minimize() and fit() only; use hvd.DistributedGradientTape, and an optimizer that "
                "is not wrapped"
            )
        optimizer._aggregated_gradients = False
        return apply(optimizer, *args, **kwargs)

    return checked
