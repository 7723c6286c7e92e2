"""What TensorFlow's attachment costs beside PyTorch's: encode and decode of one gradient on one core.

`make bench-frameworks`. Two processes, each with Horovod on one rank and its calls included, are asked in
turns, so that both meet the same machine. In TensorFlow the gradient is made inside the `tf.function`, as in
training, and the time of that alone is taken off.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "frameworks.json"
METHOD = {"density": 0.01, "bits": 4}
PACKAGES = ("torch", "tensorflow-cpu", "horovod", "hgc-horovod", "numpy")


def torch_step(n: int) -> Callable[[], float]:
    import horovod.torch as hvd
    import torch

    import hgc_horovod.torch as hgc

    torch.set_num_threads(1)
    hvd.init()
    weight = torch.nn.Parameter(torch.empty(2, n // 2))
    weight.grad = torch.zeros(2, n // 2)
    source = torch.randn(2, n // 2, generator=torch.Generator().manual_seed(0))
    compressor = hgc.Compression.hgc([("weight", weight)], **METHOD)

    def step() -> float:
        weight.grad.copy_(source)
        start = time.perf_counter()
        numbers, context = compressor.compress(weight.grad)
        compressor.decompress(hvd.allreduce(numbers, name="numbers"), context)
        return time.perf_counter() - start

    return step


def tensorflow_step(n: int) -> Callable[[], float]:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    import hgc_horovod.tensorflow as hgc

    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    source = tf.random.stateless_normal([2, n // 2], [0, 0])
    compressor = hgc.Compression.hgc(**METHOD)

    def made(factor: tf.Tensor) -> tf.Tensor:
        return source * factor

    @tf.function
    def plain(factor: tf.Tensor) -> tf.Tensor:
        return made(factor)[0, 0]

    @tf.function
    def compressed(factor: tf.Tensor) -> tf.Tensor:
        reduced = hvd.allreduce(made(factor), compression=compressor["weight"])
        return reduced[0, 0]

    def timed(function: Callable[[tf.Tensor], tf.Tensor]) -> float:
        factor = tf.constant(1.0)
        start = time.perf_counter()
        function(factor).numpy()
        return time.perf_counter() - start

    return lambda: timed(compressed) - timed(plain)


STEPS = {"torch": torch_step, "tensorflow": tensorflow_step}


def worker(framework: str, n: int, count: int) -> None:
    """Answer each line on standard input with the median of `count` steps."""
    step = STEPS[framework](n)
    for _ in range(3):
        step()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(statistics.median(step() for _ in range(count)), flush=True)


class Worker:
    def __init__(self, framework: str, n: int, count: int) -> None:
        command = [sys.executable, __file__, "--worker", framework, "--size", str(n), "--count", str(count)]
        quiet = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        gloo = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **quiet, **gloo},
        )
        self._answer()

    def ask(self) -> float:
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        return float(self._answer())

    def end(self) -> None:
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=25_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--count", type=int, default=3, help="steps of which a round takes the median")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--worker", choices=STEPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker, arguments.size, arguments.count)
        return
    workers = {name: Worker(name, arguments.size, arguments.count) for name in STEPS}
    rounds = [{name: each.ask() for name, each in workers.items()} for _ in range(arguments.rounds)]
    for each in workers.values():
        each.end()
    ratios = [one["tensorflow"] / one["torch"] for one in rounds]
    result = {
        "command": " ".join(["python benchmarks/frameworks.py", *sys.argv[1:]]),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "entries": arguments.size,
        **METHOD,
        "milliseconds": {name: 1000 * statistics.median(one[name] for one in rounds) for name in STEPS},
        "ratio": statistics.median(ratios),
        "quartiles": statistics.quantiles(ratios, n=4)[::2],
    }
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
