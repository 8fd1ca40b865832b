"""What all figures share: colors, legends, pages, files."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator
from matplotlib.transforms import offset_copy

from lightning_cgrpo.reporting.runs import MethodRuns
from lightning_cgrpo.reporting.series import Array, Series, mean_and_std, on_common_steps

ROWS = 6
"""Methods on a page."""
DPI = 150
GREEN, GRAY = "#009E73", "#555555"
# Okabe and Ito's colors, which the color-blind can tell apart.
CONSTRAINTS = ["#D55E00", "#0072B2", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
REWARDS = [GREEN, "#7AC36A", "#4B6B2F", "#A8D8A0"]
METHODS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]

RC: Any = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
}


def pages(methods: Sequence[MethodRuns]) -> Iterator[tuple[str, Sequence[MethodRuns]]]:
    """Methods in pages of about equal length, with what is appended to the figure's name."""
    count = -(-len(methods) // ROWS)
    for number, part in enumerate(np.array_split(np.arange(len(methods)), max(count, 1))):
        yield (f"_{number + 1}" if count > 1 else ""), [methods[n] for n in part]


def component_colors(methods: Sequence[MethodRuns]) -> dict[str, str]:
    """A color per component (``reward``, ``reward/<signal>``, a constraint's name), the same in all figures."""
    tags = [tag for method in methods for tag in method.tags]
    rewards = list(dict.fromkeys(tag for tag in tags if tag.startswith("reward/") and tag != "reward/mean"))
    colors = {"reward": GREEN, **{name: REWARDS[(n + 1) % len(REWARDS)] for n, name in enumerate(rewards)}}
    declared = [name for method in methods for name in method.constraints]
    seen = [tag.removeprefix("rate/") for tag in tags if tag.startswith("rate/")]
    for n, name in enumerate(dict.fromkeys([*declared, *seen])):
        colors[name] = CONSTRAINTS[n % len(CONSTRAINTS)]
    return colors


def draw_seeds(axes: Axes, seeds: Sequence[Series], color: str, **style: Any) -> None:
    """Mean over seeds with a band of one standard deviation."""
    seeds = [series for series in seeds if len(series)]
    if not seeds:
        return
    steps, mean, std = band(seeds)
    axes.plot(steps, mean, color=color, **style)
    if len(seeds) > 1:
        axes.fill_between(steps, mean - std, mean + std, color=color, alpha=0.2, linewidth=0)


def band(seeds: Sequence[Series]) -> tuple[Array, Array, Array]:
    """Steps, means and standard deviations ``[n]`` over seeds, each with a value at least."""
    steps, values = on_common_steps(list(seeds))
    return steps, *mean_and_std(values)


def name_row(axes: Axes, label: str, columns: int) -> None:
    """A method's label above its row of `columns` axes, from the left; nothing else is in that line."""
    lines = textwrap.wrap(label, 46 * columns, break_long_words=False)
    # An empty title keeps the lines free: a title longer than its axes would widen their column.
    title = axes.set_title("\n".join(" " for _ in lines))
    assert isinstance(axes.figure, Figure)
    above = offset_copy(axes.transAxes, axes.figure, 0, matplotlib.rcParams["axes.titlepad"], "points")
    axes.figure.text(0, 1, "\n".join(lines), transform=above, fontsize=title.get_fontsize(), fontweight="bold")


def say(axes: Axes, text: str) -> None:
    """Why axes are empty."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GRAY)


def updates_axis(axes: Axes, methods: Sequence[MethodRuns]) -> None:
    """From 0 to the last update of all, with ticks such as 2k."""
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(0, max(run.updates for method in methods for run in method.runs))
    axes.set_xlabel(_smoothing(methods))


def line(color: str, label: str, **style: Any) -> Line2D:
    """An entry of a legend."""
    return Line2D([], [], color=color, label=label, **style)


def legend(figure: Figure, entries: Iterable[Any], columns: int = 8) -> None:
    """One legend for the whole page, below it."""
    handles = list(entries)
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), columns))


def _smoothing(methods: Sequence[MethodRuns]) -> str:
    """How curves were smoothed, in the label of their axis."""
    curves = [series for method in methods for run in method.runs for series in run.series.values()]
    widths = {float(np.diff(series.steps).min()) for series in curves if len(series) > 1}
    if not widths:
        return "update"
    low, high = min(widths), max(widths)
    return f"update (means over {low:g}{f' to {high:g}' if high > low else ''})"


def save(figure: Figure, path: Path) -> list[Path]:
    """As PNG and PDF; `path` is without a suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A date would make every PDF a new one.
    files = [path.with_name(f"{path.name}.png"), path.with_name(f"{path.name}.pdf")]
    figure.savefig(files[0], dpi=DPI)
    figure.savefig(files[1], metadata={"CreationDate": None})
    return files


def style() -> Any:
    """The settings of all figures, as a context."""
    return matplotlib.rc_context(RC)
