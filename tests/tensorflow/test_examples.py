"""The training scripts of examples/ that use TensorFlow, on two ranks for a few steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launch import ROOT, run_ranks

KEYS = [
    "test_accuracy",
    "test_loss",
    "seconds",
    "steps",
    "bytes_per_step",
    "bytes_in_all",
    "ratio",
    "ratio_compressed_tensors",
    "ratio_with_warmup",
    "parameters",
    "ranks",
    "history",
    "arguments",
]
FEW_STEPS = ["--limit", "256", "--epochs", "2", "--warmup-epochs", "1", "--compression", "hgc"]


@pytest.mark.parametrize("script", ["tensorflow_loop", "tensorflow_fit"])
def test_a_few_steps_with_compression(script: str, tmp_path: Path) -> None:
    log = tmp_path / "result.json"
    env = {"TF_CPP_MIN_LOG_LEVEL": "2"}
    run_ranks(ROOT / f"examples/{script}.py", 2, "gloo", 300, [*FEW_STEPS, "--log-json", str(log)], env)
    result = json.loads(log.read_text())
    assert list(result) == KEYS
    assert (result["steps"], result["ranks"], len(result["history"])) == (4, 2, 2)
    assert result["ratio_compressed_tensors"] > result["ratio"] > result["ratio_with_warmup"] > 1
