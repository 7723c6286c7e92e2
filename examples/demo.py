"""The same training twice, uncompressed and with hybrid gradient compression, and a table of both.

    python examples/demo.py
    python examples/demo.py --seeds 3 --json demo.json
    python examples/demo.py --dataset cifar10 --data DIR --epochs 20 --density 0.001 --bits 2
    python examples/demo.py --framework tensorflow

With TensorFlow there are two trainings, in a loop of one's own and with Keras's fit, and a table for each.
What is not listed below goes to the training scripts beside this one, which know --help as well.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = {"torch": ["pytorch_images"], "tensorflow": ["tensorflow_loop", "tensorflow_fit"]}
PACKAGES = {"torch": ["torch"], "tensorflow": ["tensorflow", "tf_keras"]}  # as they are imported
BIN = Path(sys.executable).parent
PREFIX = re.compile(r"\[\d+\]<std(?:out|err)>:")
ROWS = [  # label, key of the result, its format, factor
    ("test accuracy, %", "test_accuracy", ".2f", 100),
    ("test loss", "test_loss", ".4f", 1),
    ("gradient bytes per step", "bytes_per_step", ",.0f", 1),
    ("gradient bytes in all", "bytes_in_all", ",.0f", 1),
    ("ratio over the whole model", "ratio", ".1f", 1),
    ("ratio on the compressed tensors", "ratio_compressed_tensors", ".1f", 1),
    ("ratio over the whole run, warm-up included", "ratio_with_warmup", ".1f", 1),
    ("training seconds", "seconds", ".1f", 1),
]


def run(command: list[str], label: str) -> None:
    """Run `command`, showing its progress bar on a terminal; SystemExit with its last lines if it fails.

    Whatever ends this function, the launcher has ended before, and with it the ranks.
    """
    if not Path(command[0]).is_file():
        raise SystemExit(f"{command[0]} is missing: install Horovod beside {sys.executable}")
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"}
    show = sys.stderr.isatty()
    lines, rest = [], ""
    # In a session of its own, so that Ctrl-C reaches the ranks once, by way of the launcher.
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        while chunk := os.read(process.stdout.fileno(), 4096):
            *parts, rest = re.split(r"[\r\n]", rest + chunk.decode(errors="replace"))
            for part in parts:
                if "%|" not in part:
                    lines.append(part)
                elif show:  # the progress bar
                    print(f"\r{label}: {PREFIX.sub('', part)}", end="", file=sys.stderr, flush=True)
        status = process.wait()
    except BaseException:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        kill_session(process, signal.SIGTERM)  # upon which the launcher ends the ranks
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        kill_session(process, signal.SIGKILL)
        raise
    finally:
        if show:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
    if status:
        said = [PREFIX.sub("", line) for line in lines if PREFIX.match(line)] or lines  # rather by the ranks
        raise SystemExit("\n".join([*said[-40:], f"exit status {status}: {shlex.join(command)}"]))


def kill_session(process: subprocess.Popen, number: int) -> None:
    """Signal a launcher and what it has started in its own session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def train(script: str, ranks: int, arguments: list[str], label: str) -> dict:
    """One training run's result, as the script writes it, with the command that gave it."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "result.json"
        launcher = [BIN / "horovodrun", "--gloo", "-np", ranks, sys.executable, HERE / f"{script}.py"]
        run([str(part) for part in [*launcher, *arguments, "--log-json", log]], label)
        result = json.loads(log.read_text())
    del result["arguments"]["log_json"]
    command = ["horovodrun", "--gloo", "-np", str(ranks), "python", f"examples/{script}.py", *arguments]
    return {"command": shlex.join(command), **result}


def cell(results: list[dict], key: str, form: str, factor: float) -> str:
    """Mean and, of several, standard deviation."""
    values = [factor * result[key] for result in results]
    mean = format(statistics.mean(values), form)
    deviation = statistics.stdev(values) if len(values) > 1 else 0
    return f"{mean} ± {deviation:{form}}" if deviation else mean


def table(columns: dict[str, list[dict]]) -> str:
    """One column for each setting, of the mean of its results."""
    rows = [["", *columns]]
    rows += [[label, *(cell(results, *how) for results in columns.values())] for label, *how in ROWS]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for label, *cells in rows:
        aligned = (f"{text:>{width}}" for text, width in zip(cells, widths[1:], strict=True))
        lines.append("   ".join([f"{label:{widths[0]}}", *aligned]))
    return "\n".join(lines)


def labelled(results: dict[str, list[dict]]) -> dict[str, list[dict]]:
    """The results under the names of the table's columns."""
    used = results["hgc"][0]["arguments"]
    compressed = f"HGC, {100 * used['density']:g} %, {used['bits']} bits"
    return {"uncompressed": results["none"], compressed: results["hgc"]}


def compare(script: str, args: argparse.Namespace, passed: list[str]) -> dict[str, list[dict]]:
    """All results of one script, without and with compression, and their table on standard output."""
    results: dict[str, list[dict]] = {"none": [], "hgc": []}
    title = f"{script}, " if len(SCRIPTS[args.framework]) > 1 else ""
    for seed in range(args.seeds):
        for compression, runs in results.items():
            label = title + (f"seed {seed}" if args.seeds > 1 else "training")
            arguments = ["--compression", compression, "--seed", str(seed), *passed]
            last = train(script, args.ranks, arguments, label)
            runs.append(last)
            print(
                f"{label}, compression {compression}: test accuracy {last['test_accuracy']:.2%}, "
                f"{last['seconds']:.0f} s",
                flush=True,
            )
    used = last["arguments"]
    spread = f", mean ± standard deviation of {args.seeds} seeds" if args.seeds > 1 else ""
    print(
        f"\n{title}{used['dataset']}, {last['parameters']:,} parameters, {last['ranks']} ranks, "
        f"{used['epochs']} epochs{spread}\n"
    )
    print(table(labelled(results)))
    gap = statistics.mean(
        a["test_accuracy"] - b["test_accuracy"] for a, b in zip(results["hgc"], results["none"], strict=True)
    )
    print(
        f"\nDifference in test accuracy: {100 * gap:+.2f} points. Bytes are what one rank hands to\n"
        "Horovod, headers included. Bytes per step and the first two ratios are the last epoch's."
    )
    return results


def versions(framework: str) -> dict:
    """What the results depend on."""
    named = importlib.metadata.packages_distributions()  # TensorFlow's is tensorflow or tensorflow-cpu
    packages = [named[package][0] for package in PACKAGES[framework]]
    known = {name: importlib.metadata.version(name) for name in (*packages, "horovod", "hgc-horovod")}
    return {**known, "python": platform.python_version(), "cpus": os.cpu_count()}


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout, allow_abbrev=False)
    add = parser.add_argument
    add("--framework", choices=SCRIPTS, default="torch")
    add("--ranks", type=int, default=2, help="processes that train together")
    add("--seeds", type=int, default=1, help="runs of each setting, with seeds 0, 1, …")
    add("--json", type=Path, metavar="FILE", help="write all results, commands and versions there")
    args, passed = parser.parse_known_args()
    for name in ("--compression", "--seed", "--log-json"):
        if any(argument.split("=")[0] == name for argument in passed):
            parser.error(f"{name} is set by the demo itself")
    if args.seeds < 1 or args.ranks < 2:
        parser.error("--seeds must be at least 1 and --ranks at least 2")

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = {}
    for number, script in enumerate(SCRIPTS[args.framework]):
        print(end="\n" if number else "")
        results[script] = compare(script, args, passed)
    if args.json:
        everything = {"versions": versions(args.framework), "seeds": list(range(args.seeds))}
        # Of one script alone, its results stand there without a name.
        everything["results"] = results if len(results) > 1 else results[script]
        args.json.write_text(json.dumps(everything, indent=2) + "\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
