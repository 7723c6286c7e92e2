"""The tables and plots of docs/results.md, from what accuracy.py wrote."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from tasks import TASKS
from variants import VARIANTS

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "results.md"
BEGIN, END = "<!-- written by accuracy.py --table -->\n", "<!-- up to here -->\n"
TITLES = {
    "cifar10": "CIFAR-10, ResNet",
    "cifar100": "CIFAR-100, VGG",
    "ptb": "Penn TreeBank, LSTM",
    "ag_news": "AG News, biLSTM",
}
METRICS = {"accuracy": ("test accuracy, %", 100), "perplexity": ("test perplexity", 1)}  # name, factor
COLUMNS = {  # header: key
    "ratio": "ratio",
    "on compressed tensors": "ratio_compressed_tensors",
    "whole run": "ratio_with_warmup",
    "whole run, compressed tensors": "ratio_compressed_tensors_with_warmup",
}
FAMILIES = {  # of methods: a colour of the plots
    "uncompressed": "black",
    "hybrid": "tab:blue",
    "sparse": "tab:orange",
    "quantized": "tab:green",
    "sign": "tab:red",
    "low rank": "tab:purple",
}
MARKERS = "osD^vP*X<>hd"
Row = dict[str, Any]
Groups = dict[str, dict[str, list[Row]]]  # task: variant: rows of several seeds


def write(results: Path, page: Path) -> None:
    """Bring the page and its plots up to date."""
    groups = read(results)
    head, rest = page.read_text().split(BEGIN)
    page.write_text(f"{head}{BEGIN}\n{tables(groups)}\n{END}{rest.split(END)[1]}")
    plot(groups, page.parent)


def read(results: Path) -> Groups:
    """The simulated runs that were not broken off, in the order of tasks and variants. Where a run was made
    with several settings, the last line counts."""
    last: dict[tuple[str, str, int], Row] = {}
    for line in results.read_text().splitlines():
        row = json.loads(line)
        if row["config"]["mode"] == "simulated" and "most_steps" not in row["config"]:
            last[row["task"], row["variant"], row["seed"]] = row
    groups: Groups = {}
    for task in TASKS:
        for variant in VARIANTS:
            found = [row for (*key, _), row in sorted(last.items()) if key == [task, variant]]
            if found:
                groups.setdefault(task, {})[variant] = found
    return groups


def tables(groups: Groups) -> str:
    """What stands between the marks."""
    return "\n".join(_table(task, variants) for task, variants in groups.items())


def _table(task: str, variants: dict[str, list[Row]]) -> str:
    one = next(iter(variants.values()))[0]
    name, factor = METRICS[one["metric"]]
    settings = one["config"]["hyperparameters"]
    told = ", ".join(f"{key} {value}" for key, value in settings.items() if value is not None)
    versions = ", ".join(f"{package} {version}" for package, version in one["versions"].items())
    lines = [["method", name, "to uncompressed", "bytes per step", *COLUMNS, "seeds"]]
    for variant, rows in variants.items():
        lines.append(
            [
                VARIANTS[variant].label,
                _spread([factor * row[row["metric"]] for row in rows])
                + (", diverged" if any(row["diverged"] for row in rows) else ""),
                _difference(rows, variants.get("dense", [])),
                f"{_mean(rows, 'bytes_per_step'):,.0f}",
                *(f"{_mean(rows, key):,.1f}" for key in COLUMNS.values()),
                str(len(rows)),
            ]
        )
    return (
        f"## {TITLES[task]}\n\n{one['parameters']:,} parameters, {one['workers']} workers, {one['steps']:,} "
        f"steps; {told}; {versions}.\n\n{_markdown(lines)}\n"
    )


def _mean(rows: list[Row], key: str) -> float:
    return statistics.mean(row[key] for row in rows)


def _spread(values: list[float]) -> str:
    """Mean and standard deviation."""
    mean = f"{statistics.mean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def _difference(rows: list[Row], dense: list[Row]) -> str:
    """In points of accuracy, or in per cent of perplexity, and its standard error where seeds are paired."""
    before = {row["seed"]: row for row in dense}
    pairs = [(row, before[row["seed"]]) for row in rows if row["seed"] in before]
    if not pairs or rows is dense:
        return ""
    metric = rows[0]["metric"]
    if metric == "accuracy":
        values, unit = [100 * (row[metric] - other[metric]) for row, other in pairs], ""
    else:
        values, unit = [100 * (row[metric] / other[metric] - 1) for row, other in pairs], " %"
    text = f"{statistics.mean(values):+.2f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values) / len(values) ** 0.5:.2f}"
    return text + unit


def _markdown(lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [lines[0], ["---"] * len(lines[0]), *lines[1:]])


def plot(groups: Groups, folder: Path) -> None:
    """Accuracy against ratio, and bits over time, as SVG files that are the same for the same results."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "hgc", "svg.fonttype": "none", "axes.grid": True, "grid.alpha": 0.3})
    _plot_ratios(groups, folder / "results-ratio.svg")
    _plot_bits(groups, folder / "results-bits.svg")


def _panels(groups: Groups) -> tuple[Any, list[Any]]:
    import matplotlib.pyplot as plt

    across = min(2, len(groups))
    down = -(-len(groups) // across)
    figure, axes = plt.subplots(down, across, figsize=(5.2 * across, 3.6 * down + 1.6), squeeze=False)
    panels = list(axes.flat)
    for panel in panels[len(groups) :]:
        panel.remove()
    for task, panel in zip(groups, panels, strict=False):
        panel.set_title(TITLES[task])
    return figure, panels


def _save(figure: Any, path: Path) -> None:
    handles: dict[str, Any] = {}
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    height = figure.get_figheight()
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=4, fontsize=8)
    figure.tight_layout(rect=(0, (0.3 + 0.18 * -(-len(handles) // 4)) / height, 1, 1))
    figure.savefig(path, metadata={"Date": None})


def _look(variant: str) -> dict[str, Any]:
    family = VARIANTS[variant].family
    alike = [name for name, other in VARIANTS.items() if other.family == family]
    return {
        "color": FAMILIES[family],
        "marker": MARKERS[alike.index(variant) % len(MARKERS)],
        "markersize": 6,
    }


def _plot_ratios(groups: Groups, path: Path) -> None:
    figure, panels = _panels(groups)
    for (_, variants), panel in zip(groups.items(), panels, strict=False):
        for variant, rows in variants.items():
            metric = rows[0]["metric"]
            name, factor = METRICS[metric]
            values = [factor * row[metric] for row in rows]
            panel.errorbar(
                _mean(rows, "ratio_with_warmup"),
                statistics.mean(values),
                statistics.stdev(values) if len(values) > 1 else None,
                label=VARIANTS[variant].label,
                linestyle="none",
                elinewidth=1,
                **_look(variant),
            )
        panel.set(xscale="log", xlabel="ratio over the whole run, warm-up included", ylabel=name)
        if metric == "perplexity":
            panel.invert_yaxis()  # up is better
        _leave_out_outliers(panel, variants)
    _save(figure, path)


def _leave_out_outliers(panel: Any, variants: dict[str, list[Row]]) -> None:
    """Show what lies within some times the distance of the better half; the table has the rest."""
    metric = next(iter(variants.values()))[0]["metric"]
    factor = METRICS[metric][1]
    means = sorted(
        (factor * statistics.mean(row[metric] for row in rows) for rows in variants.values()),
        reverse=metric == "accuracy",
    )
    best, middle = means[0], means[len(means) // 2]
    shown = [mean for mean in means if abs(mean - best) <= 6 * abs(middle - best)]
    if len(shown) < len(means):
        margin = 0.1 * abs(shown[-1] - best)
        sign = 1 if metric == "accuracy" else -1
        panel.set_ylim(shown[-1] - sign * 2 * margin, best + sign * 2 * margin)


def _plot_bits(groups: Groups, path: Path) -> None:
    """Of the methods that change their bits; no file where there is none."""
    changing: Groups = {}
    for task, variants in groups.items():
        for variant, rows in variants.items():
            if len({point["bits"] for row in rows for point in row["curve"] if "bits" in point}) > 1:
                changing.setdefault(task, {})[variant] = rows
    path.unlink(missing_ok=True)
    if not changing:
        return
    figure, panels = _panels(changing)
    for (_, variants), panel in zip(changing.items(), panels, strict=False):
        for variant, rows in variants.items():
            curves = zip(*(row["curve"] for row in rows), strict=False)
            bits = [statistics.mean(point.get("bits", 32) for point in points) for points in curves]
            epochs = range(1, len(bits) + 1)
            panel.plot(epochs, bits, label=VARIANTS[variant].label, **_look(variant))
        panel.set(xlabel="epoch", ylabel="bits of a value")
    _save(figure, path)
