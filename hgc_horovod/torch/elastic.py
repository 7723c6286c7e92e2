"""A compressor in `horovod.torch.elastic.TorchState`: committed, restored and synchronized like a model.

state = hvd.elastic.TorchState(model=model, optimizer=optimizer, compression=compressor)

What Horovod's `elastic.run` calls, and when:

- a rank was lost (HorovodInternalError): `restore` while the broken world still stands, `hvd.shutdown`,
  `hvd.init`, `sync`;
- a rank is about to come (HostsUpdatedInterrupt, between two steps): `hvd.shutdown`, `hvd.init`, `sync`;
- a host was only taken away (HostsUpdatedInterrupt): `hvd.shutdown`, `hvd.init`, and nothing of the state;
- at the start: `sync`, on every rank.
"""

from __future__ import annotations

import horovod.torch as hvd
from horovod.torch.elastic import state as states

from ..core.method import Method
from .compressor import Compressor
from .state import State, take


class CompressorStateHandler(states.StateHandler):  # type: ignore[misc]
    """Keeps a compressor's last committed state in host memory.

    A commit holds the residual and the momentum of every compressed tensor: eight bytes an entry at most.
    """

    def __init__(self, compressor: Compressor) -> None:
        if compressor.process_set is not hvd.global_process_set:
            raise ValueError(
                "process_set must be left out in elastic training: a change of the world removes all of "
                "Horovod's process sets but the global one"
            )
        super().__init__(compressor)
        self.save()

    def save(self) -> None:
        self._saved = self.value.state_dict()

    def restore(self) -> None:
        self._take(self._saved)

    def sync(self) -> None:
        """Make equal on all ranks what has to be, and keep what is this rank's own.

        Like Horovod's own handlers it does not commit: a failure before the next commit leads back to the
        last one, on all that the state holds.
        """
        self.value._reset()
        own = self.value.state_dict()
        common = hvd.broadcast_object(_common(own), root_rank=0, name="hgc.elastic")
        self._take(_merged(own, common))

    def _take(self, state: State) -> None:
        self.value._reset()
        if state["method"] != self.value.method.to_json():  # it was replaced since, or before this rank came
            self.value.method = Method.from_json(state["method"])
        take(self.value, state)


def register() -> None:
    """Tell Horovod of the handler, once."""
    registry = states.get_handler_registry()
    if not any(kind is Compressor for kind, _ in registry):
        states.set_handler_registry([(Compressor, CompressorStateHandler), *registry])


def _common(state: State) -> State:
    """What all ranks must agree on. The momentum of a tensor that was only reduced densely is applied by each
    rank for itself; that of a compressed one goes into the rank's own payloads, and is not sent around. What
    methods remember has to be the same on all ranks, or may be."""
    tensors = {
        name: {
            "step": entry["step"],
            "compressed": entry["compressed"],
            "momentum": None if entry["compressed"] else entry["momentum"],
            **{key: entry[key] for key in ("memory", "memory_of") if key in entry},
        }
        for name, entry in state["tensors"].items()
    }
    return {key: state[key] for key in ("method", "scale", "terms")} | {"tensors": tensors}


def _merged(own: State, common: State) -> State:
    """This rank's state with rank 0's common parts.

    A new rank's residuals are None and its momenta of compressed tensors too, so it needs no case of its own.
    A survivor may stand a step beside rank 0, where the world broke between their commits: what it kept of a
    tensor that rank 0 has not compressed yet must go, as the ranks' parameters would part.
    """
    nothing = {"residual": None, "momentum": None}
    tensors = {}
    for name, entry in common["tensors"].items():
        kept = own["tensors"].get(name, nothing) if entry["compressed"] else {**entry, "residual": None}
        tensors[name] = {**entry, "residual": kept["residual"], "momentum": kept["momentum"]}
    return {**own, **common, "tensors": tensors}
