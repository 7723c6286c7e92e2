"""The reducer: means and sums of the ranks' gradients, as they are compressed."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from mpi4py import MPI
from numpy.typing import ArrayLike

from .. import kernels
from ..core import check
from ..core.context import Peers
from ..core.method import Method
from ..core.types import Json
from ..policy import Policy
from ..report import Report
from . import agreement, arrays, message, state, tensors
from .arrays import Array
from .averaging import Averaging
from .exchanging import Exchanging
from .flight import Order, Outbox
from .requests import Gathering, Request, Summing
from .tensors import Sizes, Tensor, World


class Reducer:
    """Reduces NumPy gradients over the ranks of an MPI communicator, compressed by a method.

    All ranks create it together, reduce the same tensors in the same order, as MPI asks of all collectives,
    and close it together. It is for one thread at a time.

    Args:
        comm: an intracommunicator of mpi4py. It is duplicated, so that nothing here meets other messages.
        method: what to send, with the momentum of all tensors.
        names_and_sizes: the tensors, a mapping or pairs of names and shapes. A number in place of a shape is
            a tensor of so many entries whose dimensions are unknown: gradients may have any, and the method's
            `min_ndim` is not applied.
        policy: other methods for some tensors, as pairs of a name pattern, or a function of name and shape,
            and a method; the first pair that matches counts.
        seed: keys the random choices of methods that make any.
        threads: the most threads that native kernels use for one tensor.

    Raises:
        ValueError: on every rank, where an argument of one rank is wrong or two ranks' differ.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        method: Method,
        names_and_sizes: Sizes,
        *,
        policy: Policy = (),
        seed: int = 0,
        threads: int = 1,
    ) -> None:
        if not isinstance(comm, MPI.Intracomm):
            raise ValueError(f"comm must be an mpi4py.MPI.Intracomm; got {type(comm).__name__}")
        own = comm.Dup()
        own.Set_errhandler(MPI.ERRORS_RETURN)

        def settings() -> Json:
            self._tensors = tensors.make(names_and_sizes, method, policy)
            self._kernels = kernels.get(threads=check.whole("threads", threads, 1))
            return {
                "method": agreement.plain(method),
                "seed": check.whole("seed", seed, 0),
                "tensors": {name: tensor.settings(method) for name, tensor in self._tensors.items()},
            }

        try:
            agreement.compare(own, settings)
        except Exception:
            own.Free()
            raise
        self._method, self._names = method, list(self._tensors)
        in_rounds = any(tensor.method.by_allreduce for tensor in self._tensors.values())
        later = own.Dup() if in_rounds else MPI.Intracomm()
        ranks = own.Get_rank(), own.Get_size()
        self._world = World(own, later, *ranks, seed, self._kernels, Peers(), Order(), Outbox())
        self._closed = False

    @property
    def method(self) -> Method:
        """What is sent, where the policy does not say otherwise."""
        return self._method

    def allreduce(
        self, name: str, array: ArrayLike, op: str | MPI.Op = "average", out: Array | None = None
    ) -> Array:
        """The mean or the sum of the ranks' gradients of this tensor, as they are compressed.

        Args:
            name: one of `names_and_sizes`.
            array: this rank's gradient, float32, float16, float64 or bfloat16 (of ml_dtypes), of the tensor's
                shape.
            op: "average", "sum" or `MPI.SUM`.
            out: where to write the result, which may be `array` itself; by default a new array.

        Returns:
            An array of the gradient's shape and dtype, the same on all ranks, bit for bit where payloads were
            sent. NaN throughout where a rank's gradient held a NaN or an infinity: what is kept is
            then as it was before, to float32 rounding.

        What is sent dense is summed by MPI in float32, or in float64 if it is of that dtype. MPI knows no
        half precision, so `dense_fp16` means float32 here. Methods that average vectors do so in float32.

        Raises:
            ValueError: an argument is wrong, which is raised at once and on this rank alone; or, on every
                rank, the ranks reduce different tensors or by different ops.
            CompressionError: on every rank, where a rank failed to compress its gradient.
        """
        return self.iallreduce(name, array, op, out).wait()

    def iallreduce(
        self, name: str, array: ArrayLike, op: str | MPI.Op = "average", out: Array | None = None
    ) -> Request:
        """Start `allreduce`; `wait()` of what is returned gives its result.

        Several tensors may be in flight, and be waited for in any order, but all ranks start them in the same
        one. Until `wait` has returned, `array` must stay as it is. The first call for a tensor waits until
        all ranks make it, to see that they do.

        `wait` returns once all ranks have started the tensor. Only for `methods.powersgd`, which takes two
        rounds, they have to wait for it, too, or for a tensor that was started later.
        """
        tensor, summed = self._tensor(name), _is_sum(op)
        gradient = arrays.gradient(name, array, tensor.shape)
        result = arrays.result(name, out, gradient)
        if tensor.flying is not None:
            raise ValueError(f"{name!r} is in flight already; wait for its request first")
        if not tensor.met:
            # Collectives of different sizes must not meet: MPI may end the process. Later steps are compared
            # by what travels with the values.
            tag = message.tag_of(tensor.number, summed, gradient.dtype)
            self._world.order.begin_rounds(self._world.order.started)
            message.check_tags(self._names, tag, self._world.comm.allgather(tag))
            tensor.met = True
        wire = arrays.wire_dtype(gradient.dtype, tensor.method.dense.fp16)
        kind: type[Request] = Gathering
        if tensor.is_dense(wire.itemsize):
            kind = Summing
        elif tensor.method.by_allreduce:
            kind = Averaging
        elif tensor.method.varies:
            kind = Exchanging
        return kind(self._world, self._names, tensor, gradient, result, summed)

    def report_loss(self, value: float) -> None:
        """Tell methods that steer by the loss (`methods.mqgrad`) what it was, before the step is reduced.

        Each rank tells its own, and the mean over them counts; what is not finite counts as none.
        ValueError where it is no number.
        """
        self._world.peers.report_loss(value)

    def report(self) -> Report:
        """Bytes, ratios and times per tensor and in total, as this rank has seen them so far."""
        rows = [tensor.traffic for tensor in self._tensors.values() if tensor.traffic.steps]
        return Report.of(repr(self), rows, self._kernels.description)

    def state_dict(self) -> Json:
        """This rank's state, as copies of arrays and plain data. ValueError while a tensor is in flight."""
        self._check_between_steps("state_dict")
        return state.of(self._method, self._world, self._tensors)

    def load_state_dict(self, state_dict: Json | list[Json], *, other_world: str = "refuse") -> None:
        """Take over what `state_dict` returned on this rank, or a list with that of all ranks. Called on all
        ranks; where one cannot take it over, or two would be at different steps, no rank does.

        Args:
            state_dict: a list, in the order of ranks, serves any rank of any world.
            other_world: what becomes of residuals and momentum that were kept in a world of another size.
                "refuse": an error. "mean": every rank gets their mean, so that what they would have added to
                the parameters is the same. "zero": they are dropped.

        Raises:
            ValueError: on every rank.
        """
        taken: dict[str, state.Kept] = {}

        def steps() -> Json:
            self._check_between_steps("load_state_dict")
            taken.update(state.read(self._method, self._world, self._tensors, state_dict, other_world))
            return {"steps": {name: kept.step for name, kept in taken.items()}}

        agreement.compare(self._world.comm, steps)
        for name, kept in taken.items():
            kept.give(self._tensors[name], self._world)

    def close(self) -> None:
        """Free the communicator. Called on all ranks; ValueError while a tensor is in flight."""
        if not self._closed:
            self._check_between_steps("close")
            self._closed = True
            self._world.outbox.empty()
            for comm in (self._world.later, self._world.comm):
                if comm != MPI.COMM_NULL:
                    comm.Free()

    def __enter__(self) -> Reducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:  # else the other ranks may not come here
            self.close()

    def __repr__(self) -> str:
        every = self._tensors.values()
        sent = [tensor for tensor in every if not tensor.is_finally_dense]
        return (
            f"Reducer({self._method}): {len(sent)} of {len(every)} tensors, "
            f"{sum(tensor.size for tensor in sent):,} of {sum(tensor.size for tensor in every):,} entries"
        )

    def _tensor(self, name: str) -> Tensor:
        if self._closed:
            raise ValueError("the reducer is closed")
        if name not in self._tensors:
            raise ValueError(f"name must be one of names_and_sizes; got {name!r}")
        return self._tensors[name]

    def _check_between_steps(self, what: str) -> None:
        flying = [name for name, tensor in self._tensors.items() if tensor.flying is not None]
        if flying:
            raise ValueError(f"{what} must be called between steps; {flying[0]!r} is in flight")


def _is_sum(op: Any) -> bool:
    if op == "average" or op == "sum":
        return bool(op == "sum")
    if isinstance(op, MPI.Op) and op == MPI.SUM:
        return True
    raise ValueError(f'op must be "average", "sum" or MPI.SUM; got {op!r}')
