"""Simulated workers train as Horovod's ranks do, to the last bit, and the accuracy benchmark goes on where it
was broken off."""

from __future__ import annotations

import csv
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch import ROOT, run_ranks

SCRIPT = ROOT / "benchmarks/accuracy.py"
PAGE = ROOT / "docs/results.md"
RESULTS = ROOT / "benchmarks/results/accuracy.jsonl"
SMALL = ["--seeds", "0", "--set", "width=16", "epochs=3", "words=200", "batch=8"]
VARIANTS = ["dense", "fp16", "hgc-1%-4b", "hgc-0.1%-2b", "dgc", "topk"]
SAME = {"task", "variant", "method", "steps", "checksum", "parameters", "diverged", "metric", "perplexity"}
SAME |= {
    "accuracy",
    "bytes_in_all",
    "bytes_per_step",
    "ratio",
    "ratio_with_warmup",
    "ratio_compressed_tensors",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of made-up words, in the benchmark's files."""
    folder = tmp_path_factory.mktemp("data")
    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefghij", k=5)) for _ in range(190)]

    def text(first: int) -> str:
        return " ".join(chance.choices(words[first : first + 100], k=20))

    for part, count in (("train", 96), ("test", 40)):
        with (folder / f"{part}.csv").open("w", newline="") as file:
            for topic in chance.choices([1, 2, 3, 4], k=count):
                csv.writer(file).writerow([topic, "A title", text(20 * topic)])
    for part, count in (("train", 100), ("valid", 10), ("test", 10)):
        (folder / f"ptb.{part}.txt").write_text("".join(f" {text(0)} \n" for _ in range(count)))
    with (folder / "ptb.train.txt").open("a") as file:  # so that it has every word
        file.write(f" {' '.join(words)} \n")
    return folder


def arguments(data: Path, output: Path, *more: str) -> list[str]:
    return ["--data", str(data), "--output", str(output), *SMALL, *more]


def simulate(data: Path, output: Path, *more: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(SCRIPT), *arguments(data, output, *more)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return rows(output)


def tabulate(output: Path, page: Path) -> str:
    """The page of the documentation with the tables of these results; its plots lie beside it."""
    page.write_text(PAGE.read_text())
    command = [sys.executable, str(SCRIPT), "--table", "--output", str(output), "--page", str(page)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return page.read_text()


def rows(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.read_text().splitlines()]


def test_simulated_workers_are_horovods_ranks(data: Path, tmp_path: Path) -> None:
    chosen = ["--tasks", "ptb", "ag_news", "--variants", *VARIANTS]
    run_ranks(SCRIPT, 2, "gloo", 300, arguments(data, tmp_path / "real", "--workers-real", *chosen))
    simulated = simulate(data, tmp_path / "simulated", "--workers", "2", *chosen)
    real = rows(tmp_path / "real")
    assert len(real) == 2 * len(VARIANTS)
    for one, other in zip(real, simulated, strict=True):
        for key in SAME & {*one, *other}:
            assert one[key] == other[key], f"{key} of {one['task']}, {one['variant']}"
    assert len({row["checksum"] for row in real}) > len(real) // 2  # the methods differ

    page = tabulate(tmp_path / "simulated", tmp_path / "page.md")
    assert page.count("| HGC, 1 %, 4 bits |") == 2 and "## Penn TreeBank, LSTM" in page
    assert "HGC, 1 %, 4 bits" in (tmp_path / "results-ratio.svg").read_text()


def test_what_is_there_is_not_run_again(data: Path, tmp_path: Path) -> None:
    output = tmp_path / "results.jsonl"
    more = ("--tasks", "ag_news", "--workers", "2", "--processes", "2", "--steps", "3")
    first = simulate(data, output, *more, "--variants", "dense")
    with output.open("a") as file:
        file.write(json.dumps(first[0])[:100])  # of a run that was killed
    second = simulate(data, output, *more, "--variants", "dense", "topk")
    assert [row["variant"] for row in second] == ["dense", "topk"] and second[0] == first[0]
    assert simulate(data, output, *more, "--variants", "topk") == second
    row = second[1]
    assert row["steps"] == row["config"]["most_steps"] == 3 and not row["diverged"]
    assert str(tmp_path) not in output.read_text() and str(data) not in output.read_text()
    assert {"torch", "horovod", "hgc-horovod"} <= row["versions"].keys()


def test_the_tables_are_the_committed_results(tmp_path: Path) -> None:
    assert tabulate(RESULTS, tmp_path / "page.md") == PAGE.read_text()
    for row in rows(RESULTS):
        assert {"seed", "workers", "versions", "command", "config"} <= row.keys()
