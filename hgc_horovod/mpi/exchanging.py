"""Compressed tensors whose payloads differ in size from rank to rank."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from . import message
from .message import TRAILER
from .requests import Gathering


class Exchanging(Gathering):
    """Each rank's payload with its trailer goes to every other rank as one message, which tells its size.

    See `flight` for why no rank may wait here until its own messages have left.
    """

    def _prepare(self) -> None:
        tensor = self._tensor
        status, payload = self._encode()
        self._message = np.append(payload, np.zeros(TRAILER.itemsize, np.uint8))
        message.write_trailer(self._message, self._tag, status)
        tensor.traffic.count(tensor.size, self._message.nbytes, self._message.nbytes)

    def _start(self) -> None:
        world = self._world
        self._channel = self.number % (int(world.comm.Get_attr(MPI.TAG_UB) or 32767) + 1)
        sends = [world.comm.Isend(self._message, rank, self._channel) for rank in self._others()]
        world.outbox.put(self._tensor.name, sends, self._message)

    def _receive(self) -> None:
        world, status = self._world, MPI.Status()
        messages, receives = {world.rank: self._message}, []
        for rank in self._others():
            arrived = world.comm.Mprobe(rank, self._channel, status)
            messages[rank] = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            receives.append(arrived.Irecv(messages[rank]))
        MPI.Request.Waitall(receives)
        self._gathered = [messages[rank] for rank in range(world.size)]

    def _others(self) -> list[int]:
        """The other ranks, so that not all begin with the same one."""
        world = self._world
        return [(world.rank + distance) % world.size for distance in range(1, world.size)]
