"""The codec: a method bound to one tensor, with that tensor's state."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .core import check, floats, wire
from .core.block import Block, Entries
from .core.context import Context, Memory, Peers
from .core.matrices import Rounds
from .core.method import Method
from .core.types import Bytes, Floats, Json
from .kernels import Decay, Kernels, Sent, State
from .kernels import get as get_kernels
from .planning import Planner


class NonFiniteError(ValueError):
    """A gradient holds a NaN or an infinity, or overflows the residual.

    The codec's state is as it was before, to float32 rounding, as after `undo`.
    """


class Codec:
    """Compresses one tensor's gradients from step to step, on one thread at a time.

    Args:
        method: what to send; may be replaced between steps through the attribute of that name.
        size: n, the tensor's number of entries, at most 2³¹ - 1.
        name: the tensor's name, equal on all ranks. It is in every error, and with `seed`, the step and
            `rank` it keys the random choices of methods that make any; the hybrid method makes none.
        world_size: W, which scales local clipping.
        kernels: what does the work; by default `hgc_horovod.kernels.get()`.
        shape: of the tensor, which matrix methods need: they take its dimensions in two groups, as square as
            that can be. By default one row.
        peers: the other tensors of the model on this rank, for methods that compare them; by default none.

    Attributes:
        step: how many gradients were encoded; it drives the warm-up.
    """

    def __init__(
        self,
        method: Method,
        size: int,
        name: str = "",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        kernels: Kernels | None = None,
        *,
        shape: Sequence[int] | None = None,
        peers: Peers | None = None,
    ) -> None:
        self.size = check.whole("size", size, 0, wire.MAX_ENTRIES)
        self.name = name
        self.seed = check.whole("seed", seed, 0)
        self.rank = check.whole("rank", rank, 0)
        self.world_size = check.whole("world_size", world_size, 1)
        self.step = 0
        self._kernels = get_kernels() if kernels is None else kernels
        self.shape = tuple(check.whole("shape", length, 0) for length in (shape or (size,)))
        if math.prod(self.shape) != size:
            raise ValueError(f"shape must be of {size} entries; got {self.shape}")
        self._state = State(np.zeros(size, np.float32))
        self._sent: Sent | None = None
        self._peers = Peers() if peers is None else peers
        self._peers.join(self)
        self._planner = Planner(method, self.shape, self.size, self.seed, name, self._peers)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._peers.join(self)

    @property
    def method(self) -> Method:
        """What is sent. A method without feedback drops the residual, and one with another selector or
        controller what these have kept."""
        return self._planner.method

    @method.setter
    def method(self, method: Method) -> None:
        if self.method.feedback.keep and not method.feedback.keep:
            self._state.residual, self._sent = np.zeros(self.size, np.float32), None
        self._planner.use(method)

    @property
    def memory(self) -> Memory:
        """What the method's parts keep beside residual and momentum: arrays by name."""
        return self._planner.memory

    @memory.setter
    def memory(self, memory: Memory) -> None:
        self._planner.remember(memory)

    @property
    def memory_before(self) -> Memory:
        """The memory of before the last step."""
        return self._planner.before

    @property
    def residual(self) -> Floats:
        """float32 (n,), what was not sent so far; zeros where the method keeps nothing. `encode` may change
        the array in place."""
        return self._state.residual

    @residual.setter
    def residual(self, values: ArrayLike) -> None:
        self._state.residual, self._sent = self._float32("residual", values).copy(), None

    @property
    def momentum(self) -> Floats | None:
        """float32 (n,), the momentum buffer, or None before the first step that needs one."""
        return self._state.momentum

    @momentum.setter
    def momentum(self, values: ArrayLike | None) -> None:
        self._state.momentum = None if values is None else self._float32("momentum", values).copy()
        self._sent = None

    def encode(
        self,
        gradient: ArrayLike | Block,
        weight: ArrayLike | Block | None = None,
        weight_decay: float = 0.0,
        out: Bytes | None = None,
        factor: float = 1.0,
    ) -> Bytes:
        """Compress a gradient (n,) of any floating dtype into a payload, uint8 (bytes,).

        The gradient is multiplied by `factor` first (with the clip factor, in one float32 multiplication),
        as where it was made from a scaled loss: the inverse of the scale. All else is in unscaled units.

        With `weight` (n,) and `weight_decay`, `weight_decay · weight` is added to the gradient then, as
        optimizers with L2 regularization do. What the payload does not carry stays in `residual`, so that
        `residual_before + factor · gradient = decode(payload) + residual_after` to float32 rounding. The
        payload is `out` where that is given and of the payload's size, and else a new array.

        Raises:
            NonFiniteError: the step was not made; see there.
            ValueError: the gradient has another size or no floating dtype, payloads cannot stand in `out`, or
                `factor` as float32 is not above 0 and finite.
        """
        if out is not None and not (out.dtype == np.uint8 and out.ndim == 1 and out.flags.carray):
            raise ValueError(f"out must be contiguous uint8 (bytes,) and not read-only; got {out!r:.40}")
        method, context = self._planner.plan(self.step, self.rank)
        if context is not None and method.by_allreduce:
            raise ValueError(f"{method.name} averages vectors in place of sending payloads: use rounds")
        sent = self._kernels.encode(
            method,
            self._planner.slots(method, self.step),
            self._state,
            self._entries("gradient", gradient),
            None if weight is None else self._decay(weight, weight_decay),
            self.world_size,
            1.0 if factor == 1 else check.factor(f"factor of {self.name!r}", factor),
            out,
            context,
        )
        if sent is None:
            raise NonFiniteError(f"the gradient of {self.name!r} holds a NaN or an infinity, or overflows")
        self._sent = sent
        self._planner.commit(method, context)
        self.step += 1
        return sent.payload

    def rounds(
        self,
        gradient: ArrayLike | Block,
        weight: ArrayLike | Block | None = None,
        weight_decay: float = 0.0,
        factor: float = 1.0,
    ) -> Generator[Floats, Floats, Floats]:
        """One step of a method that averages vectors over the ranks (`method.by_allreduce`).

        Yields float32 vectors, of the sizes that `round_sizes` tells; each is to be averaged over the ranks,
        and the mean sent in. Returns the mean gradient, float32 (n,). The other arguments are those of
        `encode`. The state is as before until the last mean has been sent in, and the gradient is read before
        the first vector is yielded.

        Raises:
            NonFiniteError, ValueError: as `encode`, before anything is yielded.
        """
        method, context = self._planner.plan(self.step, self.rank)
        if not method.by_allreduce:
            raise ValueError(f"{method.name} sends payloads: use encode and decode_sum")
        assert context is not None
        rounds = self._kernels.rounds(
            method,
            self._planner.slots(method, self.step),
            self._state,
            self._entries("gradient", gradient),
            None if weight is None else self._decay(weight, weight_decay),
            self.world_size,
            check.factor(f"factor of {self.name!r}", factor),
            context,
        )
        if rounds is None:
            raise NonFiniteError(f"the gradient of {self.name!r} holds a NaN or an infinity, or overflows")
        return self._in_rounds(rounds, method, context)

    def _in_rounds(
        self, rounds: Rounds, method: Method, context: Context
    ) -> Generator[Floats, Floats, Floats]:
        mean, _ = yield from rounds
        self._sent = None
        self._planner.commit(method, context)
        self.step += 1
        return mean

    @property
    def round_sizes(self) -> tuple[int, ...]:
        """The sizes of the vectors of this step's `rounds`."""
        return self.method.round_sizes(self.shape, self.step)

    @property
    def bits(self) -> int:
        """Of a value, as the last step sent it."""
        return self._planner.planned.quantizer.bits

    def encode_nothing(self) -> Bytes:
        """A payload of this step's size that decodes to zeros. The state is untouched."""
        return self._planner.nothing(self.step, self.rank)

    def undo(
        self,
        gradient: ArrayLike | Block,
        weight: ArrayLike | Block | None = None,
        weight_decay: float = 0.0,
    ) -> None:
        """Take the last `encode` of these arguments back: the state of before, to float32 rounding."""
        if self._sent is None:
            raise ValueError(f"undo of {self.name!r}: there is no encoded step to take back")
        entries, decay = self._entries("gradient", gradient), self._decay(weight, weight_decay)
        self._kernels.take_back(self._planner.planned, self._state, self._sent, entries, decay)
        self._planner.take_back()
        self._sent = None
        self.step -= 1

    def amend(self, gradient: ArrayLike) -> None:
        """Add a correction (n,) to the last gradient after the fact; it leaves with the next payloads."""
        update, state, feedback = self._float32("gradient", gradient), self._state, self.method.feedback
        if not np.isfinite(update).all():
            raise NonFiniteError(f"the correction of {self.name!r} holds a NaN or an infinity")
        if feedback.momentum and state.momentum is not None:
            state.momentum = state.momentum + update
            update = feedback.direction(update, update)
        if feedback.keep:
            state.residual = state.residual + update
        self._sent = None  # what was encoded can no longer be taken back alone

    def decode_sum(
        self, payloads: Sequence[Bytes], out: NDArray[Any] | None = None, factor: float = 1.0
    ) -> NDArray[Any]:
        """The sum of the payloads' values in the order given, each multiplied by `factor` in float32.

        `out` is where the sum is written, (n,) of float32, float16 or bfloat16 (see `core.floats`); by
        default a new float32 array.

        Raises:
            PayloadError: before anything is written, where a payload is damaged or another tensor's.
        """
        for payload in payloads:
            wire.check_whole(payload)
        joined = np.concatenate([*payloads, np.zeros(0, np.uint8)])
        return np.asarray(self.decode_gathered(joined, len(payloads), out, factor))

    def decode_gathered(
        self, gathered: Bytes | Block, count: int, out: Entries | None = None, factor: float = 1.0
    ) -> Entries:
        """`decode_sum` of `count` payloads that stand one behind the other in a buffer.

        The first time after an `encode` these are taken for all ranks' payloads of that step, and a
        controller learns from their notes.
        """
        if not isinstance(gathered, Block):
            wire.check_buffer(gathered)
        check.whole("count", count, 0)
        factor = check.single("factor", factor)
        if isinstance(out, Block):
            self._decode(gathered, count, out, factor)
            return out
        if out is None:
            out = np.empty(self.size, np.float32)
        elif not (floats.is_taken(out.dtype) and out.shape == (self.size,) and out.flags.writeable):
            raise ValueError(
                f"out must be float32, float16 or bfloat16 of shape ({self.size},) and not read-only; "
                f"got {out.dtype}, {out.shape}"
            )
        plain = out.view(np.uint16) if floats.is_bfloat16(out.dtype) else out
        sums = out if plain.flags.carray else np.empty_like(out, order="C")
        self._decode(gathered, count, sums, factor)
        if sums is not out:
            out[:] = sums
        return out

    def state_dict(self) -> Json:
        """A copy of all state: arrays and plain data only."""
        state = self._state
        return {
            "version": 1,
            "method": self.method.to_json(),
            "step": self.step,
            "residual": state.residual.copy(),
            "momentum": None if state.momentum is None else state.momentum.copy(),
            **({"memory": dict(self.memory)} if self.memory else {}),
        }

    def load_state_dict(self, state: Json) -> None:
        """Take over what `state_dict` returned for a tensor of this size; the method stays as it is."""
        if state.get("version") != 1:
            raise ValueError(f"state of {self.name!r} must be of version 1; got {state.get('version')!r}")
        step = check.whole("step", state["step"], 0)
        residual = self._float32("residual", state["residual"]).copy()
        momentum = None if state["momentum"] is None else self._float32("momentum", state["momentum"]).copy()
        if not all(np.isfinite(array).all() for array in (residual, momentum) if array is not None):
            raise ValueError(f"state of {self.name!r} holds a NaN or an infinity")
        memory = {str(key): np.array(values) for key, values in state.get("memory", {}).items()}
        self.step, self._state, self._sent, self.memory = step, State(residual, momentum), None, memory

    def _decode(self, gathered: Bytes | Block, count: int, out: Entries, factor: float) -> None:
        try:
            self._kernels.decode_sum(gathered, count, out, factor, self._planner.method.vote)
        except wire.PayloadError as error:
            raise wire.PayloadError(f"{self.name!r}: {error}") from error
        if self._planner.method.controller is not None:
            self._planner.learn(np.asarray(gathered), self.step - 1)

    def _decay(self, weight: ArrayLike | Block | None, factor: float) -> Decay | None:
        return Decay(self._entries("weight", weight), factor) if weight is not None and factor else None

    def _float32(self, what: str, values: ArrayLike) -> Floats:
        return floats.widen(np.asarray(self._entries(what, values)))

    def _entries(self, what: str, values: ArrayLike | Block) -> Entries:
        return floats.taken(f"{what} of {self.name!r}", values, self.size)
