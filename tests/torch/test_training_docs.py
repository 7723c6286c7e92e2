"""The snippets of docs/training.md, run as they stand: each section's as one program, on two real ranks.

Started with a directory, this file is the program of a rank.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from tests.launch import LaunchError, run_ranks

PAGE = Path(__file__).resolve().parents[2] / "docs/training.md"
RANKS = 2
SETTING = "the setting"  # what stands above the first section, and is run before each
MIXED, UNEVEN, FAILING = "Mixed precision", "Ranks with different numbers of batches", "When something fails"
OTHERS = "Other methods"
CHECKPOINTS, NO_CODE = "Checkpoints", {"Elastic jobs", "Determinism and limits"}


def sections(page: str) -> dict[str, str]:
    """The code of each section, with every line where it stands on the page, for tracebacks."""
    title, inside = SETTING, False
    lines: dict[str, list[str]] = {title: []}
    for number, line in enumerate(page.splitlines()):
        if inside and line == "```":
            inside = False
        elif inside:
            code = lines[title]
            code.extend([""] * (number - len(code)) + [line])
        elif line == "```python":
            inside = True
        elif line.startswith("## "):
            title = line.removeprefix("## ")
            lines[title] = []
    return {title: "\n".join(code) for title, code in lines.items()}


SECTIONS = sections(PAGE.read_text())
PROGRAMS = [title for title, code in SECTIONS.items() if code and title != SETTING]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, str | None]], str]:
    """Per rank the error of each section, or None where it went well; and what was wrong with the launch."""
    directory, trouble = tmp_path_factory.mktemp("training-docs"), ""
    try:
        run_ranks(
            __file__,
            RANKS,
            "gloo",
            timeout=240,
            args=[str(directory)],
            env={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"},
        )
    except LaunchError as error:
        trouble = str(error)
    reported = []
    for rank in range(RANKS):
        path = directory / f"{rank}.jsonl"
        reported.append(dict(map(json.loads, path.read_text().splitlines())) if path.exists() else {})
    return reported, trouble


def test_the_page_is_read() -> None:
    """Every section has code but those that are known to have none."""
    assert SECTIONS.keys() - PROGRAMS == {SETTING, *NO_CODE}
    assert {MIXED, UNEVEN, FAILING, CHECKPOINTS, OTHERS} <= set(PROGRAMS)


@pytest.mark.parametrize("title", PROGRAMS)
def test_section(outcome: tuple[list[dict[str, str | None]], str], title: str) -> None:
    reported, trouble = outcome
    for rank, errors in enumerate(reported):
        error = errors.get(title, f"it was not reached\n{trouble}")
        if error is not None:
            pytest.fail(f"'{title}' of {PAGE.name} fails on rank {rank}:\n{error}", pytrace=False)


def test_launch(outcome: tuple[list[dict[str, str | None]], str]) -> None:
    if outcome[1]:
        pytest.fail(outcome[1], pytrace=False)


def preamble(title: str, rank: int) -> dict[str, Any]:
    """What the page leaves to the reader: a model, data and a loss."""
    import torch

    def net() -> torch.nn.Module:
        """As many inputs as outputs, so that two can follow each other; the same weights on all ranks."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 64))

    torch.manual_seed(rank)
    count = 5 + (rank if title == UNEVEN else 0)
    batches = [(torch.randn(8, 64), torch.randint(64, (8,))) for _ in range(count)]
    losses = 0

    def loss_function(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        nonlocal losses
        losses += 1
        loss = torch.nn.functional.cross_entropy(outputs.float(), targets)
        spoiled = title in (MIXED, FAILING) and rank == 1 and losses == 3
        return loss * float("inf") if spoiled else loss

    yours = {"batches": batches, "loss_function": loss_function, "device": "cpu"}
    return {"Net": net, "model": net(), **yours}


def check(title: str, names: dict[str, Any]) -> None:
    """The section has trained: finite weights, the same on all ranks, and compressed gradients."""
    import horovod.torch as hvd
    import torch

    model, compression = names["model"], names["compression"]
    if title == CHECKPOINTS:
        names["train"](model, names["optimizer"], names["batches"])  # the resumed run
    for parameter in model.parameters():
        mine = parameter.detach().reshape(1, -1)
        everyones = hvd.allgather(mine, process_set=compression.process_set)
        assert mine.isfinite().all(), "the weights are not finite"
        assert torch.equal(everyones, mine.expand_as(everyones)), "the ranks' weights differ"
    steps = {row.name: row.steps for row in compression.report().tensors if row.compressed_steps}
    assert steps, "nothing was compressed"
    if title == MIXED:
        assert names["scaler"].get_scale() == 2.0**15, "the scale was not halved once"
    if title == UNEVEN:
        assert set(steps.values()) == {5 + hvd.size() - 1}, "a step for each of the longest rank's batches"
    if title == OTHERS:
        assert {name: runs[0] for name, runs in names["bits"].items() if runs} == dict.fromkeys(steps, (0, 4))
    if title == CHECKPOINTS:
        found = {path.name for path in names["folder"].iterdir()}
        assert found == {"model.pt", *(f"rank{rank}-of-{RANKS}.pt" for rank in range(RANKS))}


def main(directory: str) -> None:
    import horovod.torch as hvd
    import torch

    torch.set_num_threads(1)
    hvd.init()
    os.chdir(directory)
    with Path(f"{hvd.rank()}.jsonl").open("w") as lines:
        for title in PROGRAMS:
            names, error = preamble(title, hvd.rank()), None
            try:
                for code in (SECTIONS[SETTING], SECTIONS[title]):
                    exec(compile(code, str(PAGE), "exec"), names)
                check(title, names)
            except Exception:
                error = traceback.format_exc()
            print(json.dumps([title, error]), file=lines, flush=True)
            hvd.allreduce(torch.zeros(1), name=f"end of {title}")
    hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
