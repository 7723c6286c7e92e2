"""The snippets of docs/tensorflow.md as one program, on two real ranks."""

from __future__ import annotations

import re
from pathlib import Path

from tests.launch import ROOT, run_ranks

from .environment import ENVIRONMENT

BEFORE = """
import numpy as np
import tensorflow as tf
random = np.random.default_rng(int(__import__("os").environ["HOROVOD_RANK"]))


def Net():
    layers = [tf.keras.layers.Dense(64, "tanh"), tf.keras.layers.Dense(32)]
    return tf.keras.Sequential([tf.keras.layers.Input([48]), *layers])


def draw(*shape):
    return tf.constant(random.normal(size=shape), tf.float32)


batches = [(draw(8, 48), draw(8, 32)) for _ in range(5)]
"""
AFTER = """
assert mean.shape == [100, 50]
weights = np.concatenate([weight.ravel() for weight in model.get_weights()])
everyones = hvd.allgather(tf.constant(weights[None]), name="weights").numpy()
assert all(np.array_equal(other, weights) for other in everyones)
print("the end of the page", compression.report().total.compressed_steps)
hvd.allreduce(tf.zeros(1), name="end")
"""


def test_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs/tensorflow.md").read_text()
    snippets = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(snippets) == 6
    program = tmp_path / "page.py"
    folder = f"import os\nos.chdir({str(tmp_path)!r})\n"
    program.write_text("\n".join([folder, BEFORE, *snippets, AFTER]))
    output = run_ranks(program, 2, "gloo", timeout=200, env=ENVIRONMENT)
    assert "2 of 4 tensors, 5,120 of 5,216 entries, 5 steps" in output
    assert output.count("the end of the page 5") == 2
