"""Writes the golden fixtures: what an encoder of today sends, for every later version to read.

    python -m tests.core.make_golden

A fixture that exists is never written again, because old bytes must always decode; so a new case needs a new
name. Each file holds the method, maybe further arguments of its codec, and for each step the gradient, the
payload and what it decodes to. Numbers are the shortest decimals of float32; payloads are hexadecimal in
words of four bytes.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from hgc_horovod import Codec, Method, methods
from hgc_horovod.core.bucketed import DynamicTree, PowerOfTwo, Sign, TwoMeans, Uniform
from hgc_horovod.core.quantize import Quantizer
from hgc_horovod.core.select import TopK

FOLDER = Path(__file__).parent / "golden"
STEPS = 3
MOMENTUM = {"momentum": 0.9}

# Name: entries, largest share of them that are not zero, density, bits, further arguments of the method.
CASES: dict[str, tuple[int, float, float, int, dict]] = {
    **{f"bits-{bits:02}": (40, 1, 0.2, bits, {}) for bits in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32)},
    **{f"all-entries-{bits:02}": (11, 1, 1.0, bits, {}) for bits in (1, 4, 16, 32)},
    **{f"unused-slots-{bits:02}": (30, 0.1, 0.4, bits, {}) for bits in (1, 4, 32)},
    **{f"entries-{n}-bits-{bits:02}": (n, 1, 0.01, bits, {}) for n in (0, 1, 2) for bits in (1, 4, 16)},
    "warm-up": (40, 1, 0.05, 4, {"warmup_steps": 2, "warmup_stages": 2}),
    "warm-up-from-all-entries": (12, 1, 0.1, 16, {"warmup": [1.0], "warmup_steps": 1}),
    "momentum": (40, 1, 0.1, 4, MOMENTUM),
    "momentum-nesterov": (40, 1, 0.1, 2, {**MOMENTUM, "nesterov": True}),
    "momentum-masking-clip": (40, 1, 0.1, 4, {**MOMENTUM, "masking": True, "clip": 1.5}),
    "no-feedback": (40, 1, 0.1, 4, {"feedback": False}),
    "far-apart": (200, 1, 0.01, 3, {}),
}


def chosen(quantizer: Quantizer) -> Method:
    """Three of ten entries in codes that could hold them all."""
    return Method(TopK(0.3), quantizer)


# Other value kinds. Name: shape of the tensor, largest share of entries that are not zero, method.
OTHERS: dict[str, tuple[tuple[int, ...], float, Method]] = {
    **{f"uniform-{bits}": ((21,), 1, methods.qsgd(bits, bucket=8)) for bits in range(3, 9)},
    "uniform-2-clipped": ((30,), 1, methods.terngrad(sigmas=1.5)),
    "uniform-max": ((21,), 1, methods.qsgd(3, norm="max", bucket=16)),
    "sign": ((40,), 0.8, methods.ef_signsgd(bucket=16)),
    "sign-vote": ((33,), 0.8, methods.signsgd()),
    "two-means": ((40,), 0.8, methods.onebit()),
    "tree": ((21,), 0.8, methods.eightbit(bucket=8, feedback=True)),
    "powers": ((21,), 0.8, methods.natural()),
    "some-uniform": ((30,), 1, chosen(Uniform(4, bucket=4))),
    "some-sign": ((30,), 1, chosen(Sign(bucket=4))),
    "some-two-means": ((30,), 1, chosen(TwoMeans())),
    "some-tree": ((30,), 1, chosen(DynamicTree(bucket=4))),
    "some-powers": ((30,), 1, chosen(PowerOfTwo())),
    "unused-slots-uniform": ((30,), 0.1, chosen(Uniform(3, "max", bucket=2))),
    "unused-slots-two-means": ((30,), 0.05, chosen(TwoMeans())),
    "entries-0-uniform": ((0,), 1, methods.qsgd()),
    "entries-1-tree": ((1,), 1, methods.eightbit()),
    "notes-1": ((21,), 1, methods.dqsgd(3.5)),
    "notes-2": ((21,), 1, methods.adaqs()),
    "outer": ((4, 6), 1, methods.atomo(2)),
}
# Magnitudes that meet the cap of the levels, the smallest and the largest of float32.
MAGNITUDES = {"denormals": 2.0**-146, "largest": 1e38, "wide": 1.0}
# What the random words of other methods depend on.
IDENTITY: dict[str, Any] = {"name": "conv1.weight", "seed": 5, "rank": 3}


def gradients(case: str, n: int, share: float) -> list[np.ndarray]:
    rng = np.random.default_rng(list(case.encode()))
    values = rng.standard_normal((STEPS, n)) * (rng.random((STEPS, n)) < share)
    if case == "wide":
        values = values * 2.0 ** rng.integers(-20, 20, (STEPS, n))
    values = np.clip(values * MAGNITUDES.get(case, 1.0), -1.1e38, 1.1e38)
    return list(values.astype(np.float32))


def decimals(values: np.ndarray) -> list[float]:
    """float32 as the shortest decimals that give them back."""
    return [float(str(v)) for v in values]


def fixture(method: Method, steps: list[np.ndarray], arguments: dict[str, Any]) -> str:
    """JSON with one line for the method and for each step's gradient, payload and decoded values."""
    codec, rows = Codec(method, steps[0].size, **arguments), []
    for gradient in steps:
        payload = codec.encode(gradient)
        row = {
            "gradient": decimals(gradient),
            "payload": payload.tobytes().hex(" ", 4),
            "decoded": decimals(codec.decode_sum([payload])),
        }
        rows.append(",\n   ".join(f'"{key}": {json.dumps(value)}' for key, value in row.items()))
    blocks = ",\n  ".join(f"{{{row}}}" for row in rows)
    head = f'{{\n "method": {method.to_json()},\n "entries": {codec.size},\n'
    if arguments:
        head += f' "codec": {json.dumps(arguments)},\n'
    return f'{head} "steps": [\n  {blocks}\n ]\n}}\n'


def write(folder: Path) -> list[str]:
    """Write the fixtures that do not exist yet; returns their names."""
    cases = {**CASES, **{case: (40, 1, 0.4, 4, {}) for case in MAGNITUDES}}
    made: dict[str, tuple[tuple[int, ...], float, Method, dict[str, Any]]] = {
        case: ((n,), share, methods.hgc(density, bits, **arguments), {})
        for case, (n, share, density, bits, arguments) in cases.items()
    }
    made |= {case: (*case_of, {**IDENTITY, "shape": case_of[0]}) for case, case_of in OTHERS.items()}
    written = []
    for case, (shape, share, method, arguments) in made.items():
        path = folder / f"{case}.json"
        if not path.exists():
            path.write_text(fixture(method, gradients(case, math.prod(shape), share), arguments))
            written.append(case)
    return written


if __name__ == "__main__":
    print("\n".join(write(FOLDER)) or "nothing to write: every fixture exists and stays as it is")
