"""`import hgc_horovod` needs NumPy alone and touches no framework."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORK = """
import numpy as np
import hgc_horovod as hgc
codec = hgc.Codec(hgc.methods.hgc(0.1, 4), 100)
payload = codec.encode(np.arange(100, dtype=np.float32))
assert codec.decode_sum([payload])[99] > 80 and hgc.inspect(payload).kept == 10
assert hgc.Method.from_json(codec.method.to_json()) == codec.method
"""
BLOCK = """
import sys

class OnlyNumPy:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in ("numpy", "hgc_horovod"):
            raise ImportError(f"{name} is neither NumPy nor the standard library")

sys.meta_path.insert(0, OnlyNumPy())
"""


def run(code: str) -> str:
    """What a fresh interpreter prints, started where the package lies."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_no_framework_is_imported():
    heavy = ("torch", "tensorflow", "horovod", "mpi4py", "keras", "jax")
    assert run(f"{WORK}\nimport sys\nprint([m for m in {heavy} if m in sys.modules])") == "[]"


def test_numpy_is_all_that_is_needed():
    assert run(f"{BLOCK}{WORK}\nprint(hgc.__version__)")


def test_the_block_of_the_test_above_works():
    code = "try:\n    import pytest\nexcept ImportError as error:\n    print(error)"
    assert run(f"{BLOCK}\n{code}") == "pytest is neither NumPy nor the standard library"


def test_the_examples_in_the_docstrings():
    code = "import doctest, hgc_horovod.core.bits as bits\nprint(doctest.testmod(bits))"
    assert run(code).startswith("TestResults(failed=0, attempted=")
