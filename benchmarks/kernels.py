"""How long encoding and decoding take, as multiples of adding a gradient, all in one run.

    python benchmarks/kernels.py                          measures, and writes results/kernels.json
    python benchmarks/kernels.py --table                  brings the tables of the documentation up to date
    python benchmarks/kernels.py --sizes 100000 4096 --repetitions 3 --output FILE

What is measured, and how, is told in docs/performance.md.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attachment import attachment, horovod
from kernels_table import summary, update
from rivals import rivals
from timing import ROTATED, ZERO, Gradients, Operation, clock, each, measure

from hgc_horovod import Codec, kernels, methods

HERE = Path(__file__).resolve().parent
SIZES = (25_000_000, 1_000_000, 16_384)
DISTRIBUTIONS = ("normal", "laplace", "student-t(3)")
USUAL, SPARSE = {"density": 0.01, "bits": 4}, {"density": 0.001, "bits": 2}
DISCARDED = 20  # steps of a fresh residual, which is smaller than it will be
PAYLOADS = 2  # that are decoded together


def repetitions(n: int) -> int:
    return 50 if n >= 8_000_000 else 100 if n >= 500_000 else 200


def encoding(batch: int, n: int, row: dict[str, Any]) -> list[Operation]:
    """Encoding through the codec, and decoding what it sent in its last steps."""
    method, used = methods.hgc(row["density"], row["bits"]), kernels.get()
    codecs = [Codec(method, n, kernels=used) for _ in range(batch)]
    sent = [deque(maxlen=PAYLOADS) for _ in codecs]
    outs = [np.ones(n, np.float32) for _ in codecs]

    def encode(gradient: torch.Tensor, codec: Codec, payloads: deque) -> None:
        payloads.append(codec.encode(gradient.numpy()))

    def decode_all(gathered: list[np.ndarray]) -> None:
        for codec, buffer, out in zip(codecs, gathered, outs, strict=True):
            codec.decode_gathered(buffer, PAYLOADS, out)

    def decode(_: torch.Tensor) -> list[float]:
        return [clock(decode_all, [np.concatenate(payloads) for payloads in sent])]

    return [
        Operation([{**row, "operation": "encode"}], each(encode, codecs, sent), kernels=used),
        Operation([{**row, "operation": f"decode {PAYLOADS} payloads"}], decode, unit=ZERO, stateful=False),
    ]


def rows(sizes: tuple[int, ...], count: int | None) -> list[dict[str, Any]]:
    """Every measurement; the largest size also gets the sparser setting and the rivals."""
    found = []
    for n in sizes:
        most = n == max(sizes)
        # So many small tensors in a repetition that starting the clock does not matter.
        batch = 1 if most else max(1, min(40, 4_000_000 // n))
        for distribution in DISTRIBUTIONS:
            operations: list[Operation] = []
            for setting in (USUAL, SPARSE) if most else (USUAL,):
                row = {**setting, "distribution": distribution}
                encode, decode = encoding(batch, n, row)
                operations += [encode, attachment(batch, n, row)]
                if distribution == "normal":
                    operations.append(decode)
            if most and distribution == "normal":
                operations += rivals(n, {**USUAL, "distribution": distribution})
            gradients = Gradients(distribution, batch, n, seed=len(found))
            found += measure(operations, gradients, count or repetitions(n), DISCARDED)
            print(f"{n:,} entries, {distribution}: done", file=sys.stderr, flush=True)
    return found


def memory(n: int) -> dict[str, Any] | None:
    """What memory.py prints; None where the system does not tell."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    command = [sys.executable, HERE / "memory.py", n, USUAL["density"], USUAL["bits"]]
    output = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output)


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.+)", info.read_text(), re.MULTILINE) if info.exists() else None
    return found[1].strip() if found else platform.machine()


def conditions(arguments: list[str]) -> dict[str, Any]:
    """What the results depend on."""
    packages = ("numpy", "torch", "horovod", "hgc-horovod")
    return {
        "command": shlex.join(["python", f"benchmarks/{Path(__file__).name}", *arguments]),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "cpu": processor(),
        "cores": os.cpu_count(),
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in packages},
        },
        "kernels": kernels.get().description,
        "discarded_steps": DISCARDED,
        "gradients_rotated": ROTATED,
    }


def text(results: dict[str, Any]) -> str:
    """JSON with one line for each row, which can be read and compared."""
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in results["rows"])
    return json.dumps({**results, "rows": "?"}, indent=1).replace('"?"', f"[\n{lines}\n ]") + "\n"


def main(arguments: list[str]) -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    add = parser.add_argument
    add("--sizes", type=int, nargs="+", default=SIZES, metavar="N", help="entries of the tensors, even")
    add("--repetitions", type=int, metavar="R", help="at every size; by default, the more the smaller it is")
    add("--output", type=Path, default=HERE / "results/kernels.json", metavar="FILE")
    add("--table", action="store_true", help="measure nothing, and rewrite the tables")
    args = parser.parse_args(arguments)
    if args.table:
        update(args.output, HERE.parent / "docs/performance.md")
        update(args.output, HERE.parent / "README.md", summary)
        return
    if min(args.sizes) < 2048 or any(n % 2 for n in args.sizes) or (args.repetitions or 1) < 1:
        parser.error("--sizes must be even and at least 2048, --repetitions at least 1")

    torch.set_num_threads(1)
    torch.manual_seed(0)
    results = {**conditions(arguments), "memory": memory(max(args.sizes))}
    before = os.getloadavg()[0]
    with horovod():
        results["rows"] = rows(tuple(args.sizes), args.repetitions)
    # A run that has the machine for itself ends at about 1.
    results["load_average"] = {"before": round(before, 2), "after": round(os.getloadavg()[0], 2)}
    args.output.write_text(text(results))


if __name__ == "__main__":
    main(sys.argv[1:])
