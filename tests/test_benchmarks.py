"""The kernel benchmark runs, and the documentation's numbers are those of its committed results."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SIZES = (20_000, 2_048)
KEY = ("operation", "n", "density", "bits", "distribution")
FIELDS = {*KEY, "unit", "ratio", "low", "high", "repetitions"}
ATTACHED = {
    *("compress", "decompress", "compress + decompress"),
    *("both, with Horovod's calls", "both, without Horovod's thread", "the same, with warm caches"),
}
RIVALS = {
    "encode, portable",
    "encode, 2 threads",
    "encode, float16 gradient",
    "encode, bfloat16 gradient",
    "encode, NumPy reference",
    "add_, sampled selection (DGC), gather",
    "add_, torch.topk, gather",
    "add_, 2 threads",
    "half()",
    "copy_ into float16",
    "pack_codes",
    "add_codes",
}


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "benchmarks/kernels_table.py"))


def committed() -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks/results/kernels.json").read_text())


def check(results: dict[str, Any], sizes: tuple[int, ...]) -> None:
    """Everything that is promised has been measured, once."""
    for key in ("command", "date", "cpu", "cores", "versions", "kernels"):
        assert results[key]
    assert results["versions"].keys() >= {"python", "numpy", "torch", "hgc-horovod"}
    rows = results["rows"]
    for row in rows:
        assert row.keys() >= FIELDS
        assert 0 < row["low"] <= row["ratio"] <= row["high"]
        assert row["unit"] == ("out.zero_()" if row["operation"].startswith("decode ") else "r.add_(g)")
        assert ("second_passes" in row) == (row["operation"] == "encode")
    found = {tuple(row[key] for key in KEY) for row in rows}
    assert len(found) == len(rows)
    expected = set()
    for n in sizes:
        for setting in [(0.01, 4), (0.001, 2)] if n == max(sizes) else [(0.01, 4)]:
            expected.add(("decode 2 payloads", n, *setting, "normal"))
            for distribution in ("normal", "laplace", "student-t(3)"):
                expected |= {(name, n, *setting, distribution) for name in {"encode", *ATTACHED}}
    assert found >= expected
    assert {row[0] for row in found - expected} == RIVALS


def test_a_short_run(tmp_path: Path, table: dict[str, Any]) -> None:
    output = tmp_path / "kernels.json"
    command = [sys.executable, ROOT / "benchmarks/kernels.py", "--sizes", *SIZES, "--repetitions", 2]
    subprocess.run([*map(str, command), "--output", str(output)], check=True, capture_output=True)
    results = json.loads(output.read_text())
    check(results, SIZES)
    assert {row["repetitions"] for row in results["rows"]} == {2}
    assert all(row["n"] in SIZES for row in results["rows"])

    page = tmp_path / "page.md"
    page.write_text(f"before\n{table['BEGIN']}old\n{table['END']}after\n")
    table["update"](output, page)
    assert page.read_text().startswith(f"before\n{table['BEGIN']}\n")
    assert table["tables"](results) in page.read_text() and "old" not in page.read_text()
    assert page.read_text().endswith(f"{table['END']}after\n")


def test_the_committed_results_are_complete() -> None:
    check(committed(), (25_000_000, 1_000_000, 16_384))


def test_the_tables_are_the_committed_results(table: dict[str, Any]) -> None:
    tables = table["tables"](committed())
    for page, written in (("docs/performance.md", tables), ("README.md", table["summary"](committed()))):
        assert f"{table['BEGIN']}\n{written}\n{table['END']}" in (ROOT / page).read_text()
