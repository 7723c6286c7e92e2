"""What a compressor has sent, and how long that took: the same report for every framework."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Traffic:
    """One tensor's traffic since the start of the run, as one rank sent it. Bytes are totals, times seconds.

    `dense_bytes` is what float32 would have taken and `sent_bytes` what was handed to Horovod or MPI, with
    headers and control values. `compressed_dense_bytes` and `payload_bytes` are the same two for the steps in
    which the tensor was compressed. `wait` is the time spent waiting for other ranks and the network.
    `bits` tells the bits of a value over time where the method has a controller: pairs of the step from which
    on (0 is the tensor's first) and the bits.
    """

    name: str
    steps: int = 0
    compressed_steps: int = 0
    dense_bytes: int = 0
    sent_bytes: int = 0
    compressed_dense_bytes: int = 0
    payload_bytes: int = 0
    encode_seconds: float = 0.0
    wait_seconds: float = 0.0
    decode_seconds: float = 0.0
    bits: list[tuple[int, int]] = field(default_factory=list)

    def count(self, entries: int, sent: int, payload: int | None = None) -> None:
        """Add one step of a tensor of `entries` entries; `payload` where it was compressed."""
        self.steps += 1
        self.dense_bytes += 4 * entries
        self.sent_bytes += sent
        if payload is not None:
            self.compressed_steps += 1
            self.compressed_dense_bytes += 4 * entries
            self.payload_bytes += payload

    def note_bits(self, step: int, bits: int) -> None:
        """A step was sent with these bits."""
        if not self.bits or self.bits[-1][1] != bits:
            self.bits.append((step, bits))

    @property
    def ratio(self) -> float:
        """float32 bytes / sent bytes, over everything; 1 before anything was sent."""
        return self.dense_bytes / self.sent_bytes if self.sent_bytes else 1.0

    @property
    def compressed_ratio(self) -> float:
        """float32 bytes / payload bytes where payloads were sent; 1 where none was."""
        return self.compressed_dense_bytes / self.payload_bytes if self.payload_bytes else 1.0


@dataclass(frozen=True)
class Report:
    """Traffic per tensor and its `total`, and which `kernels` ran.

    `str(report)` is a table, `to_dict()` plain data.
    """

    title: str
    kernels: str
    tensors: tuple[Traffic, ...]
    total: Traffic

    @classmethod
    def of(cls, title: str, tensors: Iterable[Traffic], kernels: str) -> Report:
        """The report of these tensors' traffic, as it is now."""
        rows = tuple(Traffic(**asdict(tensor)) for tensor in tensors)
        total = Traffic("total")
        for row in rows:
            for key, value in asdict(row).items():
                if key not in ("name", "bits"):
                    setattr(total, key, getattr(total, key) + value)
        total.steps = max((row.steps for row in rows), default=0)
        total.compressed_steps = max((row.compressed_steps for row in rows), default=0)
        return cls(title, kernels, rows, total)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: `title`, `kernels`, `ratio`, `compressed_ratio`, `total` and a list of `tensors`."""
        return {
            "title": self.title,
            "kernels": self.kernels,
            "ratio": self.total.ratio,
            "compressed_ratio": self.total.compressed_ratio,
            "total": asdict(self.total),
            "tensors": [asdict(row) for row in self.tensors],
        }

    def __str__(self) -> str:
        width = max([5, *(len(row.name) for row in self.tensors)])
        head = (
            f"{'':{width}}  {'dense B/step':>13} {'sent B/step':>13} {'ratio':>8} "
            f"{'encode ms':>10} {'wait ms':>9} {'decode ms':>10}"
        )
        lines = [self._line(row, width) for row in (*self.tensors, self.total)]
        return "\n".join(
            [
                f"{self.title}, {self.total.steps} steps, times per step",
                head,
                *lines[:-1],
                "-" * len(head),
                lines[-1],
                f"ratio {self.total.ratio:.1f} over the whole model, "
                f"{self.total.compressed_ratio:.1f} on the compressed tensors",
                f"kernels: {self.kernels}",
            ]
        )

    @staticmethod
    def _line(row: Traffic, width: int) -> str:
        steps = max(row.steps, 1)
        times = (
            1000 * seconds / steps for seconds in (row.encode_seconds, row.wait_seconds, row.decode_seconds)
        )
        encode, wait, decode = (f"{time:.2f}" if time else "-" for time in times)  # not timed in a graph
        return (
            f"{row.name:{width}}  {row.dense_bytes / steps:>13,.0f} {row.sent_bytes / steps:>13,.0f} "
            f"{row.ratio:>8.1f} {encode:>10} {wait:>9} {decode:>10}{_hint(row.bits)}"
        )


def _hint(runs: list[tuple[int, int]]) -> str:
    """The bits over time in short, for example "4→6 bits"."""
    told = [str(bits) for _, bits in runs]
    if len(told) > 4:
        told[2:-1] = ["…"]
    return f"  {'→'.join(told)} bits" if told else ""
