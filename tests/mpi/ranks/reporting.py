"""What the reducer tells about itself."""

from __future__ import annotations

import json

from hgc_horovod import methods

from .harness import OPTIONS, RANK, SIZE, reducer, values

TRAILER = 8


def case_bytes() -> None:
    method, steps = methods.hgc(**OPTIONS), 3
    with reducer() as reduce:
        assert reduce.report().total.sent_bytes == 0
        for step in range(steps):
            for name in ("matrix", "bias"):
                reduce.allreduce(name, values(name, step))
        report = reduce.report()
        text = repr(reduce)
    matrix, bias = report.tensors
    assert (matrix.name, matrix.steps, matrix.compressed_steps) == ("matrix", steps, steps)
    assert matrix.sent_bytes == steps * (method.payload_bytes(48 * 32) + TRAILER)
    assert matrix.dense_bytes == steps * 4 * 48 * 32 and matrix.payload_bytes == matrix.sent_bytes
    assert (bias.name, bias.compressed_steps, bias.sent_bytes) == ("bias", 0, steps * 4 * (40 + SIZE))
    assert report.total.encode_seconds > 0 and report.total.wait_seconds > 0
    assert json.dumps(report.to_dict()) and text in str(report)
    assert "3 of 4 tensors, 5,052 of 5,092 entries" in text, text


def case_threads() -> None:
    with reducer(threads=2) as reduce:
        reduce.allreduce("matrix", values("matrix", 0, RANK))
        kernels = reduce.report().kernels
    assert "2 threads" in kernels or kernels.startswith("reference"), kernels
