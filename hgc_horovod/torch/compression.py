"""The constructors that a user calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..core import methods
from ..core.method import Method
from .compressor import Compressor

NamedParameters = Iterable[tuple[str, torch.Tensor]]


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
        process_set: Any = None,
        name: str | None = None,
        seed: int = 0,
    ) -> Compressor:
        """A compressor that sends gradients as `method` says, for one DistributedOptimizer.

        Args:
            method: what is sent, for example `hgc_horovod.methods.hgc(density=0.01, bits=4)`.
            named_parameters: what `hvd.DistributedOptimizer` gets as well: `model.named_parameters()`, anew.
                All ranks must give the same names.
            momentum_from: a `torch.optim.SGD` not yet wrapped. Its momentum, Nesterov flag and weight decay
                are moved into the compressor, group by group, and zeroed in the optimizer. Values that are
                written there later (by a scheduler, a checkpoint, by hand) are moved as well.
            optimizer: the optimizer that will be wrapped, where `method` states a momentum itself; it is
                checked to have none left (as the wrapped one is again before it steps).
            process_set: the one given to `hvd.DistributedOptimizer`, where one is given.
            name: a prefix for the names of collectives; by default this process's how-manieth compressor it
                is, so ranks that create compressors in different orders must give one.
            seed: keys the random choices of methods that make any.

        Raises:
            ValueError: an argument is wrong; the message names it.
        """
        return Compressor(
            method,
            named_parameters,
            momentum_from=momentum_from,
            optimizer=optimizer,
            process_set=process_set,
            name=name,
            seed=seed,
        )


_ATTACH = ("momentum_from", "optimizer", "process_set", "name", "seed")
