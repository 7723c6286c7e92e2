"""The factor by which a loss, and so every gradient, is scaled before the backward pass."""

from __future__ import annotations

import math
from typing import Any


def _not_copied() -> float:
    raise ValueError(
        "loss_scale is not copied with a compressor: set the copy's loss_scale to the GradScaler, or the "
        "function, that belongs to it"
    )


class LossScale:
    """Tells the scale of a step's gradients: that of a `torch.amp.GradScaler`, what a function returns, or 1.

    Called once a step, since a scale that lives on a GPU has to be waited for.
    """

    def __init__(self, source: Any) -> None:
        self.source = source

    @property
    def source(self) -> Any:
        return self._source

    @source.setter
    def source(self, source: Any) -> None:
        if not (source is None or callable(source) or callable(getattr(source, "get_scale", None))):
            raise ValueError(
                "loss_scale must be a torch.amp.GradScaler, or a function that returns the scale; "
                f"got {source!r}"
            )
        self._source = source

    def __bool__(self) -> bool:
        return self._source is not None

    @property
    def divides(self) -> bool:
        """Whether a GradScaler divides the gradients before it lets the optimizer step."""
        enabled = getattr(self._source, "is_enabled", None)
        return enabled is not None and bool(enabled())

    def __getstate__(self) -> dict[str, Any]:
        # A copy of a GradScaler would be one that nobody updates.
        return {"_source": None if self._source is None else _not_copied}

    def __call__(self) -> float:
        if self._source is None:
            return 1.0
        scale = float(getattr(self._source, "get_scale", self._source)())
        if not 0 < scale < math.inf:
            raise ValueError(f"loss_scale must be finite and above 0; got {scale}")
        return scale
