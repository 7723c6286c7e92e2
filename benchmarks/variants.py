"""What is compared: methods with the optimizer's settings that go with them.

All train with the task's hyperparameters, which were tuned without compression. Where a method's publication
has a momentum of its own, the optimizer's is moved there; it is never applied twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tasks import Task

from hgc_horovod import Method, methods


@dataclass(frozen=True)
class Variant:
    """A method and what is told to the optimizer.

    Args:
        make: the method for a run of so many steps; None for Horovod alone.
        needs: the function of `hgc_horovod.methods` that it calls.
        moved: momentum and weight decay are moved into the compressor, as `momentum_from` does.
        lr: what the task's learning rate is multiplied by.
        momentumless: the optimizer has no momentum.
        main: runs on all tasks, and not only on the short ones.
        family: what it is like; see `accuracy_table.FAMILIES`.
    """

    name: str
    label: str
    make: Callable[[int], Method] | None
    needs: str = "hgc"
    moved: bool = False
    lr: float = 1.0
    momentumless: bool = False
    fp16: bool = False
    main: bool = False
    family: str = "quantized"

    def method(self, steps: int) -> Method | None:
        return None if self.make is None else self.make(steps)

    def momentum(self, task: Task) -> float:
        return 0.0 if self.momentumless else task.momentum

    def settings(self) -> dict[str, Any]:
        keys = ("moved", "lr", "momentumless", "fp16")
        return {key: getattr(self, key) for key in keys}

    @property
    def available(self) -> bool:
        return hasattr(methods, self.needs)


WARMUP = 0.25  # share of a run in which the density falls


def hgc(density: float, bits: int, **options: Any) -> Callable[[int], Method]:
    """The package's own method as recommended."""
    return lambda steps: methods.hgc(density, bits, warmup_steps=round(WARMUP * steps), **options)


def named(name: str, *arguments: Any, **options: Any) -> dict[str, Any]:
    """Another of `hgc_horovod.methods`, which this version may not have."""
    return {"make": lambda _: getattr(methods, name)(*arguments, **options), "needs": name}


def dgc(steps: int) -> Method:
    """Deep Gradient Compression; the momentum is the optimizer's, moved."""
    return methods.dgc(0.001, momentum=0.0, clip=1.0, warmup_steps=max(4, round(WARMUP * steps)))


ALL = (
    Variant("dense", "uncompressed", None, main=True, family="uncompressed"),
    Variant("fp16", "float16", None, fp16=True, main=True, family="uncompressed"),
    Variant("hgc-1%-4b", "HGC, 1 %, 4 bits", hgc(0.01, 4), moved=True, main=True, family="hybrid"),
    Variant("hgc-1%-2b", "HGC, 1 %, 2 bits", hgc(0.01, 2), moved=True, main=True, family="hybrid"),
    Variant("hgc-0.1%-2b", "HGC, 0.1 %, 2 bits", hgc(0.001, 2), moved=True, main=True, family="hybrid"),
    Variant("dgc", "DGC, 0.1 %", dgc, needs="dgc", moved=True, main=True, family="sparse"),
    Variant(
        "topk",
        "top-k with feedback, 1 %, 32 bits",
        lambda _: methods.hgc(0.01, 32),
        main=True,
        family="sparse",
    ),
    Variant("qsgd-4", "QSGD, 4 bits", **named("qsgd", 4), main=True),
    Variant("qsgd-6", "QSGD, 6 bits", **named("qsgd", 6)),
    Variant("terngrad", "TernGrad", **named("terngrad")),
    Variant(
        "signsgd", "signSGD, majority vote", **named("signsgd"), lr=0.01, momentumless=True, family="sign"
    ),
    Variant("ef-signsgd", "EF-signSGD", **named("ef_signsgd"), main=True, family="sign"),
    Variant("onebit", "1-bit SGD", **named("onebit"), family="sign"),
    Variant("adaqs", "AdaQS", **named("adaqs")),
    Variant("dqsgd", "DQ-SGD", **named("dqsgd")),
    Variant("oland-raj", "Øland & Raj", **named("oland_raj")),
    Variant("aiot", "AIoT partition", **named("aiot_partition"), family="sparse"),
    Variant("powersgd-4", "PowerSGD, rank 4", **named("powersgd", 4), main=True, family="low rank"),
    Variant("mqgrad", "MQGrad", **named("mqgrad")),
)
VARIANTS = {variant.name: variant for variant in ALL}
