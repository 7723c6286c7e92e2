"""A method: what is sent of a gradient, as plain data composed of interchangeable parts."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, TypeVar

from . import wire
from .bucketed import DynamicTree, PowerOfTwo, Sign, TwoMeans, Uniform
from .budget import Budget
from .chance import BinMax, Proportional
from .check import flag
from .context import matrix_shape
from .controllers import Controller, MeanToDeviation, RelativeSize
from .dense import DenseRule
from .feedback import Feedback
from .loss_learning import LossLearning
from .matrices import Factors, LowRank, RandomK, SpectralAtoms
from .norm_bits import NormBits
from .partition import EntropyPartition
from .quantize import BFloat16, Float32, Geometric, Quantizer, SignMean
from .schedule import Warmup
from .select import All, Selector, TopK, slots
from .thresholds import AdaptedThreshold, FixedThreshold, SampledThreshold

_SELECTORS = (
    *(TopK, All, FixedThreshold, SampledThreshold, AdaptedThreshold, Proportional, BinMax, EntropyPartition),
    *(RandomK, LowRank, SpectralAtoms),
)
_QUANTIZERS = (
    *(Float32, BFloat16, SignMean, Geometric, Uniform, Sign, TwoMeans, DynamicTree, PowerOfTwo, Factors),
)
_CONTROLLERS = (MeanToDeviation, NormBits, RelativeSize, LossLearning, Budget)
Part = TypeVar("Part")
PARTS: dict[str, Any] = {
    part.kind: part for part in (*_SELECTORS, *_QUANTIZERS, *_CONTROLLERS, Feedback, Warmup, DenseRule)
}


def register(part: type[Part]) -> type[Part]:
    """Make a selector, quantizer, controller or other part known by its `kind`, so that methods with it can
    be read from JSON, and payloads with a quantizer's codes be decoded. A class decorator.

    Raises:
        ValueError: it has no `kind`, another part has it, or a quantizer's `wire_id` is taken or not from 128
            to 255.
    """
    kind = getattr(part, "kind", None)
    if not isinstance(kind, str):
        raise ValueError(f"kind must be a string, the part's name in JSON; got {kind!r}")
    if PARTS.get(kind, part) is not part:
        raise ValueError(f"kind {kind!r} is that of {PARTS[kind].__name__}")
    if callable(getattr(part, "quantize", None)):
        wire.add_quantizer(part)
    PARTS[kind] = part
    return part


@dataclass(frozen=True)
class Method:
    """A selector, a quantizer, a feedback rule, a schedule, a rule for dense tensors, and maybe a controller.

    `vote`: the reduced gradient is the sign of the sum over the ranks, and 0 where that is 0.

    Immutable, comparable, hashable, and JSON both ways. It knows no framework and holds no state; a `Codec`
    binds it to one tensor.
    """

    selector: Selector
    quantizer: Quantizer
    feedback: Feedback = field(default_factory=Feedback)
    schedule: Warmup = field(default_factory=Warmup)
    dense: DenseRule = field(default_factory=DenseRule)
    name: str = "custom"
    controller: Controller | None = None
    vote: bool = False

    # The parts' fields, and what tells that a value is such a part.
    _parts: ClassVar[dict[str, str]] = {
        "selector": "select",
        "quantizer": "quantize",
        "feedback": "advance",
        "schedule": "density",
        "dense": "covers",
        "controller": "plan",
    }

    def __post_init__(self) -> None:
        for name, verb in self._parts.items():
            if name == "controller" and self.controller is None:
                continue
            if not callable(getattr(getattr(self, name), verb, None)):
                raise ValueError(f"{name} must be a {name} part; got {getattr(self, name)!r}")
        if not isinstance(self.name, str):
            raise ValueError(f"name must be a string; got {self.name!r}")
        object.__setattr__(self, "vote", flag("vote", self.vote))

    @property
    def by_allreduce(self) -> bool:
        """Whether ranks average float32 vectors (`Codec.rounds`) in place of gathering payloads."""
        return hasattr(self.selector, "rounds")

    @property
    def varies(self) -> bool:
        """Whether payloads of one tensor may differ in size, from step to step and from rank to rank."""
        return self.selector.varies or self.controller is not None

    def remembers_like(self, other: Method) -> bool:
        """Whether the other method goes on with what the parts of this one keep."""
        return (self.selector, self.controller) == (other.selector, other.controller)

    def slots(self, n: int, step: int | None = None) -> int:
        """k, how many entries of n are sent at a step (0 is the first), or after the warm-up."""
        final = self.selector.density
        return slots(n, final if step is None else self.schedule.density(step, final))

    def payload_bytes(self, n: int, step: int | None = None) -> int:
        """The size of a payload of n entries, which depends on n, k and the quantizer alone; about that where
        the method `varies`."""
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
        return not self.dense.inflate and self._sent_bytes(shape, step) >= n * itemsize

    def round_sizes(self, shape: Sequence[int], step: int | None = None) -> tuple[int, ...]:
        """The sizes of the vectors that are averaged for a tensor at a step, where `by_allreduce`."""
        selector: Any = self.selector
        return tuple(selector.sizes(matrix_shape(tuple(shape)), self.slots(math.prod(shape), step)))

    def _sent_bytes(self, shape: Sequence[int], step: int | None) -> int:
        n, matrix = math.prod(shape), matrix_shape(tuple(shape))
        if self.by_allreduce:
            return 4 * sum(self.round_sizes(shape, step))
        if isinstance(self.selector, SpectralAtoms):
            return 4 * self.selector.atoms * sum(matrix)
        return self.payload_bytes(n, step)

    def __str__(self) -> str:
        """The name, and what is sent: "hgc(density=0.01, bits=4)", "powersgd(rank=4)"; with a controller its
        arguments, since it decides."""
        told = dict(asdict(self.selector))  # type: ignore[call-overload]
        if self.controller is not None:
            told = asdict(self.controller)  # type: ignore[call-overload]
        elif not (self.by_allreduce or isinstance(self.quantizer, Factors)):
            told["bits"] = self.quantizer.bits
        about = {"density": "≈"} if self.varies else {}  # there it is no more than expected
        texts = [
            f"{key}{about.get(key, '=')}{_text(value)}" for key, value in told.items() if value is not None
        ]
        return f"{self.name}({', '.join(texts)})"

    def with_feedback(self, **changes: Any) -> Method:
        """This method with some fields of its feedback rule changed, for example `momentum=0.9`."""
        return replace(self, feedback=replace(self.feedback, **changes))

    def to_json(self) -> str:
        """The method as one JSON object, readable by `from_json` of this and later versions."""
        parts: dict[str, Any] = {}
        for name in self._parts:
            part = getattr(self, name)
            if part is not None:
                parts[name] = {"kind": part.kind, **asdict(part)}
        return json.dumps({"name": self.name, **parts, **({"vote": True} if self.vote else {})})

    @classmethod
    def from_json(cls, text: str) -> Method:
        """The method that `to_json` wrote; ValueError where the text is no method's."""
        try:
            fields = json.loads(text)
            parts = {n: _part(fields[n]) for n in cls._parts if n != "controller" or n in fields}
            return cls(name=fields["name"], vote=fields.get("vote", False), **parts)
        except (KeyError, TypeError, AttributeError, RecursionError, json.JSONDecodeError) as error:
            raise ValueError(
                f"text must be a method's JSON, as Method.to_json writes it; {error!r}"
            ) from error


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _part(fields: dict[str, Any]) -> Any:
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    kind = str(arguments.pop("kind"))
    return PARTS[kind](**arguments)
