"""The README's numbers are those of the committed results."""

import json
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_demo_table_is_the_committed_result():
    results = json.loads((ROOT / "benchmarks/results/demo.json").read_text())
    demo = runpy.run_path(str(ROOT / "examples/demo.py"))
    assert (
        f"```\n{demo['table'](demo['labelled'](results['results']))}\n```" in (ROOT / "README.md").read_text()
    )


def test_tensorflows_page_has_the_committed_ratio():
    result = json.loads((ROOT / "benchmarks/results/frameworks.json").read_text())
    first, last = result["quartiles"]
    wanted = f"takes {result['ratio']:.2f} times (quartiles {first:.2f} to {last:.2f})"
    assert wanted in (ROOT / "docs/tensorflow.md").read_text()
    assert result["ratio"] < 1.3 and result["entries"] == 25_000_000


def test_the_committed_result_keeps_the_promise():
    """Within one point of accuracy of the uncompressed run, in the mean over at least three seeds."""
    results = json.loads((ROOT / "benchmarks/results/demo.json").read_text())["results"]
    plain, compressed = ([run["test_accuracy"] for run in results[name]] for name in ("none", "hgc"))
    assert len(plain) == len(compressed) >= 3
    assert sum(plain) / len(plain) - sum(compressed) / len(compressed) < 0.01
