"""What a report tells of the bits over time; the rank programs look at its bytes and times."""

from __future__ import annotations

import json

from hgc_horovod.report import Report, Traffic


def row_with(*runs: tuple[int, int]) -> Traffic:
    row = Traffic("weight")
    for step, bits in runs:
        row.count(10, 8, 8)
        row.note_bits(step, bits)
    return row


def test_runs() -> None:
    assert row_with().bits == []
    assert row_with((0, 4), (1, 4), (2, 6), (3, 6), (4, 4)).bits == [(0, 4), (2, 6), (4, 4)]


def test_report() -> None:
    """A snapshot: in the tensors' rows, as JSON, and in the table in short."""
    changing, long = row_with((0, 4), (7, 6)), row_with(*((step, 2 + step) for step in range(6)))
    report = Report.of("title", [changing, long, row_with()], "kernels")
    changing.note_bits(9, 8)
    told = json.loads(json.dumps(report.to_dict()))
    assert [row["bits"] for row in told["tensors"]] == [[[0, 4], [7, 6]], [[n, 2 + n] for n in range(6)], []]
    assert told["total"]["bits"] == [] and told["total"]["sent_bytes"] == 8 * 8
    lines = str(report).splitlines()
    assert lines[2].endswith("  4→6 bits") and lines[3].endswith("  2→3→…→7 bits")
    assert "bits" not in lines[4]
