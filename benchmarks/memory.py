"""The most memory that encoding takes beyond residual, gradient and payload. Prints one JSON object.

    python benchmarks/memory.py 25000000 0.01 4

A process of its own, because what was freed before would hide what is needed now.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np

from hgc_horovod import Codec, kernels, methods

STEPS = 5


def resident(key: str) -> int:
    """Bytes of this process's memory: VmRSS now, VmHWM at most."""
    found = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return 1024 * int(found[1])


def peak(n: int, density: float, bits: int) -> dict:
    """Bytes per entry over several steps, the first included."""
    random, method, used = np.random.default_rng(0), methods.hgc(density, bits), kernels.get()
    gradient = np.ones(n, np.float32)
    Codec(method, 1024, kernels=used).encode(gradient[:1024])  # loads the library
    codec = Codec(method, n, kernels=used)
    codec.residual.fill(0)  # until it is written, it has no memory
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    for _ in range(STEPS):
        random.standard_normal(out=gradient, dtype=np.float32)
        payload = codec.encode(gradient)
    extra = resident("VmHWM") - before - payload.nbytes
    return {
        "n": n,
        "density": density,
        "bits": bits,
        "payload_bytes": payload.nbytes,
        "bytes_per_entry": round(extra / n, 4),
    }


if __name__ == "__main__":
    print(json.dumps(peak(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))))
