"""The constructors that a user calls."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable
from typing import Any

import horovod.torch as hvd
import torch

from .. import arguments
from ..core import methods
from ..core.method import Method
from ..policy import Policy
from .compressor import Compressor
from .loss_scale import LossScale
from .momentum import MovedTerms, terms_for
from .parameters import Parameters

log = logging.getLogger("hgc_horovod")
NamedParameters = Iterable[tuple[str, torch.Tensor]]
_created = itertools.count()


class Compression:
    """Compressors for `hvd.DistributedOptimizer(compression=...)`."""

    @staticmethod
    def hgc(
        named_parameters: NamedParameters, density: float = 0.01, bits: int = 4, **options: Any
    ) -> Compressor:
        """Hybrid gradient compression: the `density` largest entries of each gradient, `bits` bits each.

        One compressor serves one DistributedOptimizer. `options` are those of `Compression.from_method`
        (`momentum_from`, `process_set`, …) and of `hgc_horovod.methods.hgc` (`warmup_steps`, `clip`, …).
        """
        attach = {key: options.pop(key) for key in _ATTACH if key in options}
        return Compression.from_method(methods.hgc(density, bits, **options), named_parameters, **attach)

    @staticmethod
    def from_method(
        method: Method,
        named_parameters: NamedParameters,
        *,
        momentum_from: torch.optim.Optimizer | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        policy: Policy = (),
        loss_scale: Any = None,
        process_set: Any = None,
        name: str | None = None,
        seed: int = 0,
    ) -> Compressor:
        """A compressor that sends gradients as `method` says, for one DistributedOptimizer.

        Args:
            method: what is sent, for example `hgc_horovod.methods.hgc(density=0.01, bits=4)` or `powersgd()`.
            named_parameters: what `hvd.DistributedOptimizer` gets as well: `model.named_parameters()`, anew.
                All ranks must give the same names.
            momentum_from: a `torch.optim.SGD` not yet wrapped. Its momentum, Nesterov flag and weight decay
                are moved into the compressor, group by group, and zeroed in the optimizer. Values that are
                written there later (by a scheduler, a checkpoint, by hand) are moved as well. Nothing is
                moved, with a warning, where no method keeps what it does not send (qsgd, terngrad, …).
            optimizer: the optimizer that will be wrapped, where `method` states a momentum itself; it is
                checked to have none left (as the wrapped one is again before it steps).
            policy: other methods for some parameters, as pairs of a name pattern ("*.bias") or a function of
                name and parameter (`hgc_horovod.torch.embeddings(model)`), and a method
                (`hgc_horovod.methods.dense()`). The first pair that matches counts; momentum stays that of
                `method`.
            loss_scale: the `torch.amp.GradScaler` in use, or a function that returns the factor by which the
                loss was multiplied. What is kept is then free of that factor.
            process_set: the one given to `hvd.DistributedOptimizer`, where one is given.
            name: a prefix for the names of collectives; by default this process's how-manieth compressor it
                is, so ranks that create compressors in different orders must give one.
            seed: keys the random choices of methods that make any.

        Raises:
            ValueError: an argument is wrong; the message names it.
        """
        process_set = arguments.checked(hvd, method, seed, process_set, name)
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise ValueError(f"optimizer must be a torch.optim.Optimizer; got {optimizer!r}")
        scale = LossScale(loss_scale)
        parameters = Parameters(named_parameters, method, policy)
        terms = terms_for(method, momentum_from, optimizer, parameters.slots, _reduces(process_set))
        if isinstance(terms, MovedTerms) and process_set.rank() == 0:
            log.warning("hgc_horovod: moved from the optimizer, per parameter group: %s", terms)
        return Compressor(
            method,
            parameters,
            terms,
            name=name,
            process_set=process_set,
            loss_scale=scale,
            prefix=name if name is not None else f"hgc.{next(_created)}",
            seed=seed,
        )


_ATTACH = ("momentum_from", "optimizer", "policy", "loss_scale", "process_set", "name", "seed")


def _reduces(process_set: Any) -> bool:
    """Whether Horovod's DistributedOptimizer reduces on this rank (the condition in its own source)."""
    return bool(process_set.included()) and (hvd.size() > 1 or os.environ.get("HOROVOD_ELASTIC") == "1")
