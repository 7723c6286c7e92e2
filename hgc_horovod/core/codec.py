"""The codec: a method bound to one tensor, with that tensor's state. The NumPy reference of every byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import check, wire
from .method import Method
from .types import Bytes, Floats, Indices, Json


class NonFiniteError(ValueError):
    """A gradient holds a NaN or an infinity, or overflows the residual. The codec's state is as it was."""


@dataclass(frozen=True)
class _Sent:
    """What `undo` needs of the last `encode`, all of it no larger than the payload's contents."""

    indices: Indices
    values: Floats
    masked_momentum: Floats
    clip_factor: np.float32


class Codec:
    """Compresses one tensor's gradients from step to step.

    Args:
        method: what to send; may be replaced between steps through the attribute `method`.
        size: n, the tensor's number of entries, at most 2³¹ - 1.
        name: the tensor's name, equal on all ranks. It is in every error, and with `seed`, the step and
            `rank` it keys the random choices of methods that make any; the hybrid method makes none.
        world_size: W, which scales local clipping.

    Attributes:
        residual: float32 (n,), what was not sent so far; zeros where the method keeps nothing.
        momentum: float32 (n,), the momentum buffer, or None before the first step that needs one.
        step: how many gradients were encoded; it drives the warm-up.
    """

    def __init__(
        self, method: Method, size: int, name: str = "", seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        self.method = method
        self.size = check.whole("size", size, 0, wire.MAX_ENTRIES)
        self.name = name
        self.seed = check.whole("seed", seed, 0)
        self.rank = check.whole("rank", rank, 0)
        self.world_size = check.whole("world_size", world_size, 1)
        self.step = 0
        self.residual: Floats = np.zeros(size, np.float32)
        self.momentum: Floats | None = None
        self._sent: _Sent | None = None

    def encode(
        self, gradient: ArrayLike, weight: ArrayLike | None = None, weight_decay: float = 0.0
    ) -> Bytes:
        """Compress a gradient (n,) of any floating dtype into a payload, uint8 (bytes,).

        With `weight` (n,) and `weight_decay`, `weight_decay · weight` is added to the gradient first, as
        optimizers with L2 regularization do. What the payload does not carry stays in `residual`, so that
        `residual_before + gradient = decode(payload) + residual_after` to float32 rounding.

        Raises:
            NonFiniteError: before anything is written.
            ValueError: the gradient has another size or no floating dtype.
        """
        feedback = self.method.feedback
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found below and refused
            update, clip_factor = self._update(gradient, weight, weight_decay)
            momentum = self.momentum
            if feedback.momentum:
                buffer = np.zeros(self.size, np.float32) if momentum is None else momentum
                momentum, update = feedback.advance(buffer, update)
            total = self.residual + update if feedback.keep else update.copy()
        if not np.isfinite(total).all():
            raise NonFiniteError(f"the gradient of {self.name!r} holds a NaN or an infinity, or overflows")

        header = self._header()
        indices = (
            np.arange(self.size)
            if header.index_kind == wire.ALL
            else self.method.selector.select(total, header.k)
        )
        codes, scales = header.quantizer.quantize(total[indices])
        values = header.quantizer.dequantize(codes, scales)

        self.momentum = momentum
        masked = np.zeros(0, np.float32)
        if feedback.masking and feedback.momentum and momentum is not None:
            masked = momentum[indices]
            momentum[indices] = 0
        total[indices] -= values
        self.residual = total if feedback.keep else np.zeros_like(total)
        self._sent = _Sent(indices, values, masked, clip_factor)
        self.step += 1
        return wire.pack(header, indices, codes, scales)

    def encode_nothing(self) -> Bytes:
        """A payload of this step's size that decodes to zeros. The state is untouched."""
        header = self._header()
        nothing = np.zeros(header.n if header.index_kind == wire.ALL else 0, np.int64)
        return wire.pack(
            header, nothing, nothing.astype(np.uint64), np.zeros(header.quantizer.scale_count, np.float32)
        )

    def undo(self, gradient: ArrayLike, weight: ArrayLike | None = None, weight_decay: float = 0.0) -> None:
        """Take the last `encode` of these arguments back: the state of before, to float32 rounding."""
        if self._sent is None:
            raise ValueError(f"undo of {self.name!r}: there is no encoded step to take back")
        sent, feedback = self._sent, self.method.feedback
        update, _ = self._update(gradient, weight, weight_decay, sent.clip_factor)
        if feedback.momentum and self.momentum is not None:
            if feedback.masking:
                self.momentum[sent.indices] = sent.masked_momentum
            before = feedback.retreat(self.momentum, update)
            update = feedback.direction(self.momentum, update)
            self.momentum = before
        if feedback.keep:
            self.residual[sent.indices] += sent.values
            self.residual = self.residual - update
        self._sent = None
        self.step -= 1

    def amend(self, gradient: ArrayLike) -> None:
        """Add a correction (n,) to the last gradient after the fact; it leaves with the next payloads."""
        update, feedback = self._array("gradient", gradient), self.method.feedback
        if not np.isfinite(update).all():
            raise NonFiniteError(f"the correction of {self.name!r} holds a NaN or an infinity")
        self._sent = None  # what was encoded can no longer be taken back alone
        if feedback.momentum and self.momentum is not None:
            self.momentum = self.momentum + update
            update = feedback.direction(update, update)
        if feedback.keep:
            self.residual = self.residual + update

    def decode_sum(self, payloads: Sequence[Bytes], out: Floats | None = None) -> Floats:
        """The sum of the payloads' reconstructions in the order given, float32 (n,), into `out` if given.

        Raises PayloadError before anything is written where a payload is damaged or another tensor's.
        """
        decoded = [wire.unpack(payload) for payload in payloads]
        for header, _, _ in decoded:
            if header.n != self.size:
                raise wire.PayloadError(f"{self.name!r} has {self.size} entries; got a payload of {header.n}")
        if out is None:
            out = np.empty(self.size, np.float32)
        elif out.dtype != np.float32 or out.shape != (self.size,):
            raise ValueError(f"out must be float32 of shape ({self.size},); got {out.dtype}, {out.shape}")
        out[:] = 0
        with np.errstate(over="ignore"):
            for _, indices, values in decoded:
                out[indices] += values
        return out

    def state_dict(self) -> Json:
        """A copy of all state: arrays and plain data only."""
        return {
            "version": 1,
            "method": self.method.to_json(),
            "step": self.step,
            "residual": self.residual.copy(),
            "momentum": None if self.momentum is None else self.momentum.copy(),
        }

    def load_state_dict(self, state: Json) -> None:
        """Take over what `state_dict` returned for a tensor of this size; the method stays as it is."""
        if state.get("version") != 1:
            raise ValueError(f"state of {self.name!r} must be of version 1; got {state.get('version')!r}")
        step = check.whole("step", state["step"], 0)
        residual = self._array("residual", state["residual"]).copy()
        momentum = None if state["momentum"] is None else self._array("momentum", state["momentum"]).copy()
        if not all(np.isfinite(array).all() for array in (residual, momentum) if array is not None):
            raise ValueError(f"state of {self.name!r} holds a NaN or an infinity")
        self.step, self.residual, self.momentum, self._sent = step, residual, momentum, None

    def _header(self) -> wire.Header:
        """This step's layout."""
        method = self.method
        return wire.layout(self.size, method.slots(self.size, self.step), method.quantizer, method.name)

    def _update(
        self,
        gradient: ArrayLike,
        weight: ArrayLike | None,
        weight_decay: float,
        clip_factor: np.float32 | None = None,
    ) -> tuple[Floats, np.float32]:
        """The gradient after clipping and weight decay, and the clip factor (found, unless given)."""
        update = self._array("gradient", gradient)
        if clip_factor is None:
            clip_factor = np.float32(1)
            if self.method.feedback.clip is not None and np.isfinite(update).all():
                clip_factor = self.method.feedback.clip_factor(update, self.world_size)
        if clip_factor != 1:
            update = update * clip_factor
        if weight is not None and weight_decay:
            update = update + np.float32(weight_decay) * self._array("weight", weight)
        return update, clip_factor

    def _array(self, what: str, values: ArrayLike) -> Floats:
        array: NDArray[Any] = np.asarray(values)
        if array.shape != (self.size,) or array.dtype.kind != "f":
            raise ValueError(
                f"{what} of {self.name!r} must be a float array of shape ({self.size},); "
                f"got {array.dtype}, {array.shape}"
            )
        return array.astype(np.float32, copy=False)
