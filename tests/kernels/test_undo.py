"""The native undo, which TensorFlow's operations use, leaves what the reference's leaves, bit for bit."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from hgc_horovod import Codec
from hgc_horovod.kernels import library
from hgc_horovod.kernels.native import NativeKernels
from hgc_horovod.kernels.reference import ReferenceKernels
from tests.core.samples import BITS, gaussian, hybrid

from .pairs import DTYPES, PATHS, Recorder, as_dtype
from .test_identity import RULES

SIZES = (0, 1, 65, 2049, 8193, 300_000)
CODES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1}


def step_of(
    codec: Codec, gradient: np.ndarray, multiplier: float, masked: np.ndarray, path: int
) -> library.Step:
    feedback = codec.method.feedback
    return library.Step(
        gradient=gradient.ctypes.data,
        gradient_dtype=CODES.get(gradient.dtype, 2),
        momentum=feedback.momentum,
        nesterov=feedback.nesterov,
        masking=feedback.masking and feedback.momentum > 0,
        keep=feedback.keep,
        factor=multiplier,
        residual=codec.residual.ctypes.data,
        velocity=None if codec.momentum is None else codec.momentum.ctypes.data,
        masked=masked.ctypes.data,
        path=path,
        threads=2,
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("n", SIZES)
def test_undo(n, rule):
    bits = BITS[(SIZES.index(n) + len(rule)) % len(BITS)]
    dtype = list(DTYPES)[len(rule) % 3]
    method = hybrid(0.02, bits, **RULES[rule])
    for path, name in enumerate(PATHS):
        recorder = Recorder(NativeKernels(2, name, grain=1))
        codecs = [Codec(method, n, kernels=recorder) for _ in range(2)]
        gradients = [as_dtype(gaussian(n, seed), dtype) for seed in range(3)]
        for gradient in gradients:
            sents = []
            for codec in codecs:
                codec.encode(gradient, factor=0.75)
                sents.append(recorder.sent)
        native, reference = codecs
        ReferenceKernels().take_back(
            method, reference._state, sents[1]._replace(before=None), gradients[-1], None
        )
        sent = sents[0]
        payload, masked = sent.payload, np.ascontiguousarray(sent.masked_momentum)
        step = step_of(native, gradients[-1], sent.multiplier, masked, path)
        arguments = (payload.ctypes.data, payload.size, n, ctypes.addressof(step))
        assert library.load().hgc_undo(*arguments) == library.OK
        assert native.residual.tobytes() == reference.residual.tobytes()
        assert (native.momentum is None) == (reference.momentum is None)
        if native.momentum is not None:
            assert native.momentum.tobytes() == reference.momentum.tobytes()


@pytest.mark.parametrize("damage", ["short", "size"])
def test_another_tensors_payload_is_refused(damage):
    codec = Codec(hybrid(0.1, 4), 100)
    gradient = gaussian(100, 1)
    payload = codec.encode(gradient)
    before = codec.residual.copy()
    step = step_of(codec, gradient, 1.0, np.zeros(0, np.float32), 0)
    size = 10 if damage == "short" else payload.size
    n = 100 if damage == "short" else 99
    status = library.load().hgc_undo(payload.ctypes.data, size, n, ctypes.addressof(step))
    assert status == library.DAMAGED
    assert codec.residual.tobytes() == before.tobytes()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("n", "k"), [(0, 0), (1, 1), (100, 5), (100, 100), (5000, 50)])
def test_nothing(n, k, bits):
    """The native payload of zeros is the codec's."""
    method = hybrid(max(k, 1) / max(n, 1), bits)
    expected = Codec(method, n).encode_nothing()
    form = library.Format(n, method.slots(n), 1, method.quantizer.wire_id, bits)
    payload = np.full(expected.size, 7, np.uint8)
    library.load().hgc_encode_nothing(ctypes.addressof(form), payload.ctypes.data)
    assert payload.tobytes() == expected.tobytes()
