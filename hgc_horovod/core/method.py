"""A method: what is sent of a gradient, as plain data composed of interchangeable parts."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

from . import wire
from .dense import DenseRule
from .feedback import Feedback
from .quantize import BFloat16, Float32, Geometric, Quantizer, SignMean
from .schedule import Warmup
from .select import Selector, TopK, slots

PARTS: dict[str, Any] = {
    part.kind: part for part in (TopK, Float32, BFloat16, SignMean, Geometric, Feedback, Warmup, DenseRule)
}


@dataclass(frozen=True)
class Method:
    """A selector, a quantizer, a feedback rule, a schedule and a rule for dense tensors.

    Immutable, comparable, hashable, and JSON both ways. It knows no framework and holds no state; a `Codec`
    binds it to one tensor.
    """

    selector: Selector
    quantizer: Quantizer
    feedback: Feedback = field(default_factory=Feedback)
    schedule: Warmup = field(default_factory=Warmup)
    dense: DenseRule = field(default_factory=DenseRule)
    name: str = "custom"

    # The parts' fields, and what tells that a value is such a part.
    _parts: ClassVar[dict[str, str]] = {
        "selector": "select",
        "quantizer": "quantize",
        "feedback": "advance",
        "schedule": "density",
        "dense": "covers",
    }

    def __post_init__(self) -> None:
        for name, verb in self._parts.items():
            if not callable(getattr(getattr(self, name), verb, None)):
                raise ValueError(f"{name} must be a {name} part; got {getattr(self, name)!r}")
        if not isinstance(self.name, str):
            raise ValueError(f"name must be a string; got {self.name!r}")

    def slots(self, n: int, step: int | None = None) -> int:
        """k, how many entries of n are sent at a step (0 is the first), or after the warm-up."""
        final = self.selector.density
        return slots(n, final if step is None else self.schedule.density(step, final))

    def payload_bytes(self, n: int, step: int | None = None) -> int:
        """The size of a payload of n entries, which depends on n, k and the quantizer alone."""
        return wire.payload_bytes(n, self.slots(n, step), self.quantizer)

    def is_dense(self, shape: Sequence[int], step: int | None = None, itemsize: int = 4) -> bool:
        """Whether a tensor of this shape and `itemsize` bytes an entry is to be sent as it is.

        `step` counts from 0; without it the answer is for the time after the warm-up.
        """
        if self.dense.covers(shape) or (step is not None and step < self.schedule.dense_steps):
            return True
        n = math.prod(shape)
        if n > wire.MAX_ENTRIES:
            return True
        return not self.dense.inflate and self.payload_bytes(n, step) >= n * itemsize

    def with_feedback(self, **changes: Any) -> Method:
        """This method with some fields of its feedback rule changed, for example `momentum=0.9`."""
        return replace(self, feedback=replace(self.feedback, **changes))

    def to_json(self) -> str:
        """The method as one JSON object, readable by `from_json` of this and later versions."""
        parts = {
            name: {"kind": getattr(self, name).kind, **asdict(getattr(self, name))} for name in self._parts
        }
        return json.dumps({"name": self.name, **parts})

    @classmethod
    def from_json(cls, text: str) -> Method:
        """The method that `to_json` wrote; ValueError where the text is no method's."""
        try:
            fields = json.loads(text)
            return cls(name=fields["name"], **{name: _part(fields[name]) for name in cls._parts})
        except (KeyError, TypeError, AttributeError, RecursionError, json.JSONDecodeError) as error:
            raise ValueError(
                f"text must be a method's JSON, as Method.to_json writes it; {error!r}"
            ) from error


def _part(fields: dict[str, Any]) -> Any:
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    kind = str(arguments.pop("kind"))
    return PARTS[kind](**arguments)
