"""Run on every rank: `python tests/torch/ranks DIRECTORY [PART OF A NAME]`. Executes all cases but long ones,
or those of such a name, in one order, and writes

    {"case": NAME, "error": null or a traceback, "seconds": TIME}

a line per case to DIRECTORY/RANK.jsonl. A case may fail; where that leaves a collective without a partner,
Horovod's stall check ends the job, and the cases behind it do not report.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import time
import traceback
from pathlib import Path

import horovod.torch as hvd
import torch

from tests.torch.ranks.cases import CASES, LONG

HANG = 150  # seconds after which a case that hangs shows where


def main(directory: str, part: str = "") -> None:
    torch.set_num_threads(1)
    hvd.init()
    with (Path(directory) / f"{hvd.rank()}.jsonl").open("w") as lines:
        cases = {**CASES, **LONG} if part else CASES
        for name, case in [(name, case) for name, case in cases.items() if part in name]:
            faulthandler.dump_traceback_later(HANG, exit=True)
            error, start = None, time.monotonic()
            try:
                case()
            except Exception:
                error = traceback.format_exc()
            print(
                json.dumps({"case": name, "error": error, "seconds": time.monotonic() - start}),
                file=lines,
                flush=True,
            )
            hvd.allreduce(torch.zeros(1), name=f"end of {name}")
    faulthandler.cancel_dump_traceback_later()
    hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
