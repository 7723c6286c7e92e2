"""The compressor that Horovod's DistributedOptimizer is given.

Horovod calls `compress(gradient)` when a gradient is ready, allreduces the tensor that comes back, and calls
`decompress(reduced, context)`. Bytes cannot be summed, so the payload travels by an allgather of our own,
whose handle is in the context, and Horovod's allreduce gets two numbers that tell its scale (`control`). Some
methods average vectors instead, by allreduces of our own (`rounds`).
`compress` starts asynchronous operations only, because ranks may reach it in different orders, and waits for
other ranks just once and not for ever, to compare settings with them. When the first gradient of a step comes
back, all are on their way on every rank, and the ranks agree whether the step counts (`agreement`) before
anything is decoded over what was encoded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch

from .. import kernels
from ..core.context import Peers
from ..core.method import Method
from ..report import Report, Traffic
from . import agreement, control, discarding, files, joining, state, tensors
from .codecs import Codecs
from .dense import DenseExchange
from .exchange import Exchange
from .flight import Compressed, Context, Dense, Reduced
from .loss_scale import LossScale
from .momentum import FixedTerms, MovedTerms, Terms
from .parameters import Parameters
from .step import Step


class Compressor:
    """Made by `Compression.hgc` and `Compression.from_method`; one for each DistributedOptimizer."""

    def __init__(
        self,
        method: Method,
        parameters: Parameters,
        terms: FixedTerms | MovedTerms,
        *,
        name: str | None,
        process_set: Any,
        loss_scale: LossScale,
        prefix: str,
        seed: int,
    ) -> None:
        self._method = method
        self._parameters = parameters
        self._terms = terms
        self.process_set = process_set
        self.seed = seed
        self.name = name
        self._loss_scale = loss_scale
        self._prefix = prefix
        self._kernels = kernels.get(threads=torch.get_num_threads())
        self._peers = Peers()
        self._passed = Traffic("(not registered)")
        self._agreed = Traffic("(agreement)")
        self._connect()

    def _connect(self) -> None:
        """Make what belongs to this process and its Horovod, which a copy has anew."""
        self._step = Step(self._prefix, self.process_set, self._loss_scale)
        codecs = Codecs(self._step, self.seed, self._kernels, self._peers)
        which = self._step, self._terms, self._prefix, self.process_set
        self._exchange, self._dense = Exchange(codecs, *which), DenseExchange(self._passed, *which)
        joining.compressors.add(self)
        self.optimizer: Callable[[], Any] = _nobody  # that Horovod has made with this compressor

    @property
    def method(self) -> Method:
        """What is sent. Another one may be set between two steps, on all ranks; what was kept stays."""
        return self._method

    @method.setter
    def method(self, method: Method) -> None:
        if not isinstance(method, Method):
            raise ValueError(f"method must be a hgc_horovod.Method; got {type(method).__name__}")
        self._check_between_steps("method")
        if method.feedback.momentum != self._method.feedback.momentum:
            raise ValueError("method must have the momentum of the one before")
        self._parameters.use(method)
        self._method = method
        self._step.restart()

    @property
    def loss_scale(self) -> Any:
        """The `GradScaler`, or the function, that tells what a loss is multiplied by; None without."""
        return self._loss_scale.source

    @loss_scale.setter
    def loss_scale(self, source: Any) -> None:
        self._check_between_steps("loss_scale")
        self._loss_scale.source = source

    def compress(self, gradient: torch.Tensor) -> tuple[torch.Tensor, Context]:
        """Start sending a gradient; Horovod allreduces the tensor that is returned."""
        if gradient is None:
            raise ValueError(
                "a parameter of a Horovod group has no gradient in this step: groups= needs "
                "every parameter of a group to take part in every step"
            )
        step = self._step
        slot = self._parameters.find(gradient)
        if slot is not None and step.is_repeated(slot):
            return control.vector(gradient, first=False).tensor.to(gradient.device), Reduced(gradient)
        if slot is None:  # it has no part in a step
            self._check_stranger(gradient)
            return tensors.to_wire(gradient, self._method.dense.fp16), Dense(None, gradient)
        if not step.begun or slot.in_flight:  # in flight: the step before was broken off
            self._check_arrived()
            self._abandon()
            step.begin(lambda: state.settings(self))
        slot.in_flight = True
        if slot.is_dense(gradient):
            return self._dense.start(slot, gradient)
        return self._exchange.start(slot, gradient)

    def decompress(self, reduced: torch.Tensor, context: Context) -> torch.Tensor:
        """The reduced gradient, in the memory, shape, strides and dtype of the one that was compressed."""
        if context is None:  # a sparse gradient, which Horovod gathers itself
            self._check_sparse(reduced)
            return reduced
        if isinstance(context, Reduced):
            return context.gradient
        if isinstance(context, Dense) and context.slot is None:
            return self._dense.finish(reduced, context)
        if isinstance(context, Compressed):  # first of all: in another process set, waiting would hang
            scale = control.scale_of(reduced, self._step.world)
        if not self._step.concluded:
            self._exchange.check_untouched()
            self._step.conclude()
            self._exchange.go_on()
            self._agreed.count(0, agreement.BYTES)
        assert context.slot is not None
        context.slot.in_flight = False
        context.slot.remember_reduced()
        if isinstance(context, Dense):
            return self._dense.finish(reduced, context)
        return self._exchange.finish(scale, context)

    def discard(self, optimizer: Any) -> None:
        """Drop what was accumulated since the last step, in place of `optimizer.step()`, on all ranks.

        What the compressor keeps is as it was before, to float32 rounding, and the gradients are None.
        `optimizer` is Horovod's, not synchronized yet, or failed to on all ranks.
        """
        discarding.discard(self, optimizer)

    def report_loss(self, value: float | torch.Tensor) -> None:
        """Tell methods that steer by the loss (`methods.mqgrad`) what it is, before its backward pass.

        `value` is this rank's, a number or a tensor of one entry; the mean over the ranks counts, and what is
        not finite counts as none. A tensor on a device is waited for. ValueError where it is neither.
        """
        loss = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
        self._peers.report_loss(loss)

    def report(self) -> Report:
        """Bytes, ratios and times per tensor and in total, as this rank has seen them so far."""
        rows = [slot.traffic for slot in self._parameters.slots if slot.traffic.steps]
        if self._passed.steps:  # several gradients a step, counted one by one
            rows.append(replace(self._passed, steps=max((row.steps for row in rows), default=1)))
        if self._agreed.steps:
            rows.append(self._agreed)
        return Report.of(repr(self), rows, self._kernels.description)

    def state_dict(self) -> dict[str, Any]:
        """This rank's state, as copies: tensors and plain data only. See `hgc_horovod.torch.state`."""
        return state.of(self)

    def load_state_dict(
        self, state_dict: dict[str, Any] | list[dict[str, Any]], *, other_world: str = "refuse"
    ) -> None:
        """Take over what `state_dict` returned on this rank, or a list with that of all ranks.

        Args:
            state_dict: a list, in the order of ranks, serves any rank of any world.
            other_world: what becomes of residuals (and velocities) that were kept in a world of another
                size. "refuse": an error. "mean": every rank gets their mean, so that what they would have
                added to the parameters is the same. "zero": they are dropped.
        """
        state.load(self, state_dict, other_world)

    def save(self, directory: str | Path) -> None:
        """Write this rank's state to a file of its own in a directory that all ranks give."""
        files.save(self, directory)

    def load(self, directory: str | Path, *, other_world: str = "refuse") -> None:
        """Read what `save` wrote, on any number of ranks; `other_world` as for `load_state_dict`."""
        files.load(self, directory, other_world)

    def __repr__(self) -> str:
        slots = self._parameters.slots
        sent = [slot for slot in slots if not slot.method.is_dense(slot.parameter.shape)]
        entries = sum(slot.parameter.numel() for slot in sent)
        total = sum(slot.parameter.numel() for slot in slots)
        tensors_sent = f"{len(sent)} of {len(slots)} tensors"
        return f"Compression.{self._method}: {tensors_sent}, {entries:,} of {total:,} entries"

    def _reset(self) -> None:
        """Begin anew with Horovod: what was in flight is taken back, settings are compared again."""
        self._abandon()
        self._step.restart()

    def _check_arrived(self) -> None:
        """Wait with patience for what is in flight; see `Exchange.check_arrived`."""
        self._exchange.check_arrived(self._dense.handing.values(), agreement.PATIENCE)

    def _abandon(self) -> None:
        """Give up what is in flight, where Horovod never came back for what it was given."""
        self._dense.abandon()
        self._exchange.abandon()
        for slot in self._parameters.slots:
            slot.in_flight = False

    def _check_between_steps(self, what: str) -> None:
        if any(slot.in_flight for slot in self._parameters.slots):
            raise ValueError(
                f"{what} must be called between steps: gradients are being reduced now. After an exception "
                "in a backward pass, call compression.discard(optimizer) on all ranks first"
            )

    def __getstate__(self) -> dict[str, Any]:
        if self._exchange.flying:
            raise ValueError("a compressor cannot be copied in the middle of a step")
        bound = ("_step", "_exchange", "_dense", "optimizer")
        kept = {key: value for key, value in self.__dict__.items() if key not in bound}
        return {**kept, "op_scale": self._step.op_scale}

    def __setstate__(self, state: dict[str, Any]) -> None:
        op_scale = state.pop("op_scale")
        self.__dict__.update(state)
        if self.process_set.process_set_id == 0:  # Horovod knows its own object only
            self.process_set = hvd.global_process_set
        self._connect()
        self._step.op_scale = op_scale

    def _check_sparse(self, reduced: torch.Tensor) -> None:
        for slot in self._parameters.with_sparse_gradient(reduced.shape):
            if self._terms.of(slot.parameter) != Terms():
                raise ValueError(
                    f"{slot.name} has sparse gradients, whose momentum and weight decay momentum_from "
                    "cannot move; give DistributedOptimizer sparse_as_dense=True, or put the "
                    "parameter into a group with momentum=0 and weight_decay=0"
                )

    def _check_stranger(self, gradient: torch.Tensor) -> None:
        if isinstance(gradient, torch.nn.Parameter):
            raise ValueError(
                "op=hvd.Adasum hands parameters, not gradients, to the compressor and cannot be "
                "combined with it; use op=hvd.Average or op=hvd.Sum"
            )
        self._step.warn(
            "stranger",
            f"a gradient of shape {tuple(gradient.shape)} belongs to no parameter of named_parameters "
            "and is sent uncompressed",
        )


def _nobody() -> None:
    """In place of a reference to an optimizer."""
