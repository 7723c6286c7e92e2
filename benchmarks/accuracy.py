"""How accurate models are that were trained with each method, and how many bytes that took.

    python benchmarks/accuracy.py --data DIR                                all runs that are missing
    python benchmarks/accuracy.py --data DIR --tasks cifar10 --variants dense hgc-1%-4b --seeds 0 1 2
    python benchmarks/accuracy.py --data DIR --processes 8 --set epochs=20
    horovodrun -np 4 python benchmarks/accuracy.py --data DIR --workers-real --tasks ag_news
    python benchmarks/accuracy.py --table                                   docs/results.md and its plots

Without --workers-real a run simulates its workers in one process, on one core. Every finished run is a line
of JSON in --output; what stands there already is not run again, and a run that was killed starts anew.
tasks/__init__.py tells which files DIR holds.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import itertools
import json
import multiprocessing
import platform
import shlex
import sys
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accuracy_table import PAGE, write
from tasks import TASKS, Task
from tqdm import tqdm
from training import Simulated, train
from variants import VARIANTS, Variant

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "accuracy.jsonl"
LONG = ("cifar100", "ptb")  # on which only the main methods run
PACKAGES = ("torch", "numpy", "horovod", "hgc-horovod")
Row = dict[str, Any]


class Run(NamedTuple):
    task: Task
    name: str
    seed: int
    workers: int
    data: Path
    command: str
    most_steps: int | None = None
    mode: str = "simulated"  # or "horovod"

    @property
    def variant(self) -> Variant:
        return VARIANTS[self.name]

    @property
    def config(self) -> Row:
        """What identifies the run, with all settings."""
        method = self.variant.method(1000)
        return {
            "task": self.task.name,
            "variant": self.variant.name,
            "seed": self.seed,
            "workers": self.workers,
            "mode": self.mode,
            "hyperparameters": self.task.settings(),
            "optimizer": self.variant.settings(),
            "method of 1000 steps": None if method is None else json.loads(method.to_json()),
            **({} if self.most_steps is None else {"most_steps": self.most_steps}),
        }


def missing(arguments: argparse.Namespace, mode: str = "simulated") -> Iterator[Run]:
    """The runs that were asked for, without those in the results. One seed of everything comes first."""
    done = {identity(row["config"]) for row in rows(arguments.output)}
    chosen = [VARIANTS[name] for name in arguments.variants or VARIANTS]
    for variant in (variant for variant in chosen if not variant.available):
        print(f"{variant.name}: this version has no methods.{variant.needs}", file=sys.stderr)
    data = arguments.data
    paths = {str(data): "DIR", str(arguments.output): "FILE"}
    command = shlex.join(["python", "benchmarks/accuracy.py", *(paths.get(a, a) for a in sys.argv[1:])])
    for seed, name in itertools.product(arguments.seeds, arguments.tasks):
        task = TASKS[name](**changes(TASKS[name], arguments.set))
        for variant in chosen:
            if not variant.available or (name in LONG and not (variant.main or arguments.variants)):
                continue
            run = Run(task, variant.name, seed, arguments.workers, data, command, arguments.steps, mode)
            if identity(run.config) not in done:
                yield run


def identity(config: Row) -> str:
    return json.dumps(config, sort_keys=True)


def rows(path: Path) -> list[Row]:
    """The results so far. A last line that was cut off is none."""
    lines = path.read_text().split("\n")[:-1] if path.is_file() else []
    return [json.loads(line) for line in lines if line]


def changes(task: type[Task], pairs: list[str]) -> Row:
    """`key=value` pairs as hyperparameters of the task, those that it has."""
    fields = {field.name for field in dataclasses.fields(task)}
    parsed = (pair.partition("=")[::2] for pair in pairs)
    return {key: json.loads(value) for key, value in parsed if key in fields}


def carry_out(run: Run, make: Any = Simulated, epochs: Any = None) -> Row:
    """A run's line of the results."""
    load(run.task, run.data)
    report = (lambda _: None) if epochs is None else epochs.put
    result = train(run.task, run.variant, run.seed, make, run.workers, report, run.most_steps)
    versions = {"python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in PACKAGES}
    head = {"task": run.task.name, "variant": run.variant.name, "label": run.variant.label, "seed": run.seed}
    tail = {"metric": run.task.metric, "versions": versions, "command": run.command}
    return {**head, "workers": run.workers, **result, **tail, "config": run.config}


_loaded: dict[str, Task] = {}


def load(task: Task, data: Path) -> None:
    """Read the task's data, unless the run before had the same."""
    key = identity({"name": task.name, **task.settings()})
    if key not in _loaded:
        _loaded.clear()
        task.load(data)
        _loaded[key] = task
    vars(task).update(vars(_loaded[key]))


_epochs: Any = None


def _start(epochs: Any) -> None:
    global _epochs
    _epochs = epochs
    torch.set_num_threads(1)


def _work(run: Run) -> Row:
    return carry_out(run, epochs=_epochs)


def simulate(runs: list[Run], processes: int, output: Path) -> None:
    """Carry the runs out in so many processes, with a bar that counts epochs."""
    context = multiprocessing.get_context("spawn")
    epochs = context.Queue()
    total = sum(run.task.epochs for run in runs)
    with (
        ProcessPoolExecutor(processes, context, _start, (epochs,)) as pool,
        tqdm(total=total, unit="epoch", smoothing=0.02, dynamic_ncols=True, mininterval=1) as bar,
    ):
        waiting: dict[Future[Row], Run] = {pool.submit(_work, run): run for run in runs}
        while waiting:
            for future in wait(waiting, timeout=1, return_when=FIRST_COMPLETED).done:
                run = waiting.pop(future)
                append(output, future.result())
                bar.set_postfix_str(f"{run.task.name} {run.variant.name} {run.seed}")
            while not epochs.empty():
                epochs.get()
                bar.update()


def append(output: Path, row: Row) -> None:
    """Add a line, in place of what a process that was killed may have left of one."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(json.dumps(row).encode() + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR")
    add("--tasks", nargs="+", choices=TASKS, default=list(TASKS), metavar="TASK", help=", ".join(TASKS))
    add(
        "--variants",
        nargs="+",
        choices=VARIANTS,
        metavar="VARIANT",
        help=", ".join(VARIANTS).replace("%", "%%"),
    )
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--workers", type=int, default=4, help="that are simulated")
    add("--processes", type=int, default=1, help="runs at a time")
    add(
        "--set",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="other hyperparameters, where a task has them",
    )
    add("--steps", type=int, metavar="N", help="break off after N steps")
    add("--workers-real", action="store_true", help="train on Horovod's ranks, under horovodrun")
    add("--output", type=Path, default=RESULTS)
    add("--table", action="store_true", help="only write the documentation, from --output")
    add("--page", type=Path, default=PAGE, help="with --table: what to write between the marks of")
    arguments = parser.parse_args()
    if arguments.table:
        write(arguments.output, arguments.page)
        return
    if arguments.data is None:
        parser.error("--data DIR is needed to train")
    if arguments.workers_real:
        from real import carry_out_all

        carry_out_all(arguments)
        return
    simulate(list(missing(arguments)), arguments.processes, arguments.output)


if __name__ == "__main__":
    main()
