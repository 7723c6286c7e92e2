"""What is kept in Python of tensors whose methods the native operations do not know."""

from __future__ import annotations

import functools
import io
import json
import os
import threading
import warnings
from typing import Any

import numpy as np
import tensorflow as tf

from .. import kernels
from ..codec import Codec
from ..core.context import Peers
from ..core.method import Method
from ..core.quantize import BFloat16, Float32, Geometric, SignMean
from ..core.select import TopK
from ..kernels import Kernels
from ..report import Traffic

_SELECTORS, _QUANTIZERS = {TopK}, {Float32, BFloat16, SignMean, Geometric}
_MEMORY = "memory/"


def is_native(method: Method) -> bool:
    """Whether the operations of `csrc/tensorflow/` know all that the method does."""
    return (
        type(method.selector) in _SELECTORS
        and type(method.quantizer) in _QUANTIZERS
        and method.controller is None
        and not method.vote
    )


class Shared:
    """What the tensors of one compressor have in common.

    Attributes:
        peers: through which their parts know each other's numbers.
        drops_steps: steps may be taken back after they were made.
        lock: held while a codec works. TensorFlow works on several tensors at once, and they read what others
            keep.
        failures: the errors that this step ends with, once all that it sends has been sent: where a rank went
            no further than to the first, the others would wait for what it did not send.
    """

    def __init__(self, drops_steps: bool) -> None:
        self.peers, self.drops_steps = Peers(), drops_steps
        self.lock = threading.Lock()
        self.failures: list[Exception] = []

    @functools.cached_property
    def kernels(self) -> Kernels:
        """Those of all codecs, with as many threads as TensorFlow has for one operation."""
        threads = tf.config.threading.get_intra_op_parallelism_threads()
        return kernels.get(threads=threads or len(os.sched_getaffinity(0)))


class Kept(tf.train.experimental.PythonState):
    """One tensor's codec, as a part of TensorFlow's checkpoints.

    Its step, and whose it is, stand in the slot's `counts`.
    """

    def __init__(self, name: str, shape: tuple[int, ...], method: Method, seed: int, shared: Shared) -> None:
        size = int(np.prod(shape, dtype=np.int64))
        self.codec = Codec(method, size, name, seed, 0, 1, shared.kernels, shape=shape, peers=shared.peers)
        self.shared, self.traffic = shared, Traffic(name)

    def serialize(self) -> bytes:
        """The codec's state as NumPy's npz."""
        state = self.codec.state_dict()
        arrays = {key: state[key] for key in ("residual", "momentum") if state[key] is not None}
        arrays |= {_MEMORY + key: values for key, values in state.get("memory", {}).items()}
        plain = {key: state[key] for key in ("version", "method", "step")}
        data = io.BytesIO()
        np.savez(data, plain=np.frombuffer(json.dumps(plain).encode(), np.uint8), **arrays)
        return data.getvalue()

    def deserialize(self, data: bytes) -> None:
        """Go on from what `serialize` returned of a tensor of this size."""
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = dict(file)
        state: dict[str, Any] = json.loads(arrays.pop("plain").tobytes())
        state["memory"] = {
            key[len(_MEMORY) :]: arrays.pop(key) for key in [*arrays] if key.startswith(_MEMORY)
        }
        state |= {"momentum": None, **arrays}
        codec, method = self.codec, self.codec.method
        if state["method"] != method.to_json():
            warnings.warn(
                f"the state of {codec.name} was kept under another method, {state['method']}, and goes on "
                f"under {method.to_json()}",
                stacklevel=2,
            )
            codec.method = Method.from_json(state["method"])
        codec.load_state_dict(state)
        if codec.method != method:
            codec.method = method  # which drops what it has no use for
        self.forget_step()

    def reset(self) -> None:
        """Forget what is kept."""
        nothing = np.zeros(self.codec.size, np.float32)
        self.codec.load_state_dict({"version": 1, "step": 0, "residual": nothing, "momentum": None})
        self.forget_step()

    def forget_step(self) -> None:
        """The last step cannot be taken back any more, and its failures are nobody's."""
        self.shared.failures.clear()
