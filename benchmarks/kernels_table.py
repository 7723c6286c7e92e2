"""The tables of docs/performance.md and of README.md, from what kernels.py wrote."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- written by kernels.py --table -->\n", "<!-- up to here -->\n"
SMALL = 100_000  # a size up to which a tensor is worth microseconds
ONE = "compress + decompress"
MAIN = ("encode", "compress", "decompress", ONE)  # measured with every distribution
SELECTIONS = ("add_, sampled selection (DGC), gather", "add_, torch.topk, gather")
INCLUSIVE, ALONE = "both, with Horovod's calls", "both, without Horovod's thread"
WARM = "the same, with warm caches"

Row = dict[str, Any]


def tables(results: dict[str, Any]) -> str:
    """What stands between the marks."""
    rows, memory, load = results["rows"], results["memory"], results["load_average"]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    parts = [
        f"{results['cpu']}, {results['cores']} cores; {versions}; kernels: {results['kernels']}; "
        f"{results['date']}. Load average {load['before']:.1f} before the run and {load['after']:.1f} after "
        "it, where 1 is the run itself.",
        _main([row for row in rows if row["operation"] in MAIN]),
        _others([row for row in rows if row["operation"] not in (*MAIN, INCLUSIVE, ALONE, WARM)]),
        *(_small(rows, n) for n in sorted({row["n"] for row in rows if row["n"] <= SMALL})),
    ]
    if memory:
        parts.append(
            f"The most memory that encoding takes beyond gradient, residual and payload: {memory['n']:,} "
            f"entries, {_setting(memory)}: {memory['bytes_per_entry']:.2f} bytes per entry."
        )
    return "\n\n".join(parts) + "\n"


def summary(results: dict[str, Any]) -> str:
    """A few rows for README.md: the largest tensor, the first distribution."""
    rows = results["rows"]
    largest = max(row["n"] for row in rows)
    first = rows[0]["distribution"]
    return _others([row for row in rows if row["n"] == largest and _is_told(row, first)]) + "\n"


def update(results: Path, page: Path, write: Callable[[dict[str, Any]], str] = tables) -> None:
    """Put what `write` makes of the results into the page, between the marks."""
    head, rest = page.read_text().split(BEGIN)
    tail = rest.split(END)[1]
    page.write_text(f"{head}{BEGIN}\n{write(json.loads(results.read_text()))}\n{END}{tail}")


def _is_told(row: Row, distribution: str) -> bool:
    told = ("encode", "decode 2 payloads", *SELECTIONS, "half()", "copy_ into float16")
    return row["operation"] in told and row["distribution"] == distribution


def _main(rows: list[Row]) -> str:
    """One column for each distribution, and the second passes of all of them."""
    columns = list(dict.fromkeys(row["distribution"] for row in rows))
    lines = [["operation", "entries", "density, bits", *columns, "second passes"]]
    for key in dict.fromkeys(_key(row) for row in rows):
        here = {row["distribution"]: row for row in rows if _key(row) == key}
        counted = [row for row in here.values() if "encodes" in row]
        passes = sum(row["second_passes"] for row in counted)
        encodes = sum(row["encodes"] for row in counted)
        first = next(iter(here.values()))
        lines.append(
            [
                *(first["operation"], f"{first['n']:,}", _setting(first)),
                *(_ratio(here[name]) for name in columns),
                f"{passes} of {encodes:,}" if counted else "",
            ]
        )
    return _markdown(lines)


def _others(rows: list[Row]) -> str:
    lines = [["operation", "entries", "density, bits", "unit", "ratio"]]
    for row in rows:
        unit = f"`{row['unit']}`"
        lines.append([row["operation"], f"{row['n']:,}", _setting(row), unit, _ratio(row)])
    return _markdown(lines)


def _small(rows: list[Row], n: int) -> str:
    """Microseconds per tensor, of the first distribution."""
    here = {row["operation"]: row for row in reversed(rows) if row["n"] == n}
    told = [f"{name} {here[name]['microseconds']:.1f}" for name in MAIN[1:]]
    return (
        f"{here[ONE]['tensors']} tensors of {n:,} entries, {here[ONE]['distribution']} gradients, µs per "
        f"tensor (median): `add_` {here[ONE]['unit_microseconds']:.1f}, {', '.join(told)}; "
        f"{here[INCLUSIVE]['microseconds']:.1f} with the time in Horovod's calls; "
        f"{here[ALONE]['microseconds']:.1f} for both where Horovod's calls are stood in for, so that its "
        f"thread does not run at the same time, {_ratio(here[ALONE])} times `add_`; "
        f"{here[WARM]['microseconds']:.1f} of that kind one step after the other, where the caches are warm."
    )


def _key(row: Row) -> tuple[Any, ...]:
    return row["operation"], row["n"], row["density"], row["bits"]


def _setting(row: Row) -> str:
    density = None if row["density"] is None else f"{100 * row['density']:g} %"
    bits = None if row["bits"] is None else f"{row['bits']} bits"
    return ", ".join(filter(None, [density, bits]))


def _ratio(row: Row) -> str:
    """Median and quartiles."""
    digits = 2 if row["ratio"] < 20 else 0
    median, low, high = (f"{row[key]:.{digits}f}" for key in ("ratio", "low", "high"))
    return f"{median} ({low} to {high})"


def _markdown(lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [lines[0], ["---"] * len(lines[0]), *lines[1:]])
