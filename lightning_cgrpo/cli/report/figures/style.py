"""Colors, legends, pages and files."""

from __future__ import annotations

import math
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

from lightning_cgrpo.cli.report.methods import MethodRuns
from lightning_cgrpo.run.series import Array, Series, mean_and_std, on_common_steps

ROWS = 6
"""Methods per page."""
DPI = 150
GREEN = "#009E73"
MISSED = "#D55E00"
GRAY = "#555555"
# Okabe and Ito's colors, which color-blind readers can tell apart.
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
    "pdf.fonttype": 42,  # Text stays text.
    "text.parse_math": False,  # Names of runs may have dollar signs.
}


def split_pages(methods: Sequence[MethodRuns]) -> Iterator[tuple[str, Sequence[MethodRuns]]]:
    """Pages of similar length, after a suffix for file names ("" for one page)."""
    count = math.ceil(len(methods) / ROWS)
    for page, numbers in enumerate(np.array_split(np.arange(len(methods)), max(count, 1)), start=1):
        suffix = f"_{page}" if count > 1 else ""
        yield suffix, [methods[number] for number in numbers]


def component_colors(methods: Sequence[MethodRuns]) -> dict[str, str]:
    """Colors of ``reward``, ``reward/<signal>`` and each constraint."""
    rewards: list[str] = []
    declared: list[str] = []
    measured: list[str] = []
    for method in methods:
        declared += method.bounds
        for tag in method.tags:
            if tag.startswith("reward/") and tag != "reward/mean":
                rewards.append(tag)
            if tag.startswith(("rate/", "mean/")):
                measured.append(tag.partition("/")[2])

    # Each name gets the next color, in the order in which the methods declare or log it.
    colors = {"reward": GREEN}
    for number, tag in enumerate(dict.fromkeys(rewards), start=1):
        colors[tag] = REWARDS[number % len(REWARDS)]
    for number, name in enumerate(dict.fromkeys([*declared, *measured])):
        colors[name] = CONSTRAINTS[number % len(CONSTRAINTS)]
    return colors


def draw_seeds(axes: Axes, seeds: Sequence[Series], color: str, **style: Any) -> None:
    """Draw mean and standard deviation over seeds."""
    seeds = [series for series in seeds if len(series)]
    if not seeds:
        return
    steps, mean, std = seed_band(seeds)
    axes.plot(steps, mean, color=color, **style)
    if len(seeds) > 1:
        axes.fill_between(steps, mean - std, mean + std, color=color, alpha=0.2, linewidth=0)


def seed_band(seeds: Sequence[Series]) -> tuple[Array, Array, Array]:
    """Steps, and means and sample standard deviations over seeds, ``[n]`` each."""
    steps, values = on_common_steps(list(seeds))
    return steps, *mean_and_std(values)


def name_row(axes: Axes, label: str, columns: int) -> None:
    """Write a method's label above its row of axes."""
    lines = textwrap.wrap(label, 46 * columns, break_long_words=False)
    # An empty title keeps the space, because a title longer than its axes would widen their column.
    title = axes.set_title("\n".join(" " for _ in lines))
    assert isinstance(axes.figure, Figure)
    above = offset_copy(axes.transAxes, axes.figure, 0, matplotlib.rcParams["axes.titlepad"], "points")
    axes.figure.text(0, 1, "\n".join(lines), transform=above, fontsize=title.get_fontsize(), fontweight="bold")


def write_note(axes: Axes, text: str) -> None:
    """Explain why axes are empty."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GRAY)


def updates_axis(axes: Axes, methods: Sequence[MethodRuns]) -> None:
    """Set the horizontal axis from 0 to the last update of all methods."""
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    last_updates = [max(run.updates for run in method.runs) for method in methods]
    axes.set_xlim(0, max(last_updates))
    axes.set_xlabel("update")


def legend_line(color: str, label: str, **style: Any) -> Line2D:
    """A legend's entry."""
    return Line2D([], [], color=color, label=label, **style)


def add_legend(figure: Figure, entries: Iterable[Any], columns: int = 8) -> None:
    """Draw one legend below the whole page."""
    handles = list(entries)
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), columns))


def save_figure(figure: Figure, path: Path) -> Path:
    """Save PNG and PDF (the path has no suffix), and return the PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = path.with_name(f"{path.name}.png")
    figure.savefig(picture, dpi=DPI)
    # The PDF keeps the PNG's layout, because computing it takes a third of the time.
    figure.set_layout_engine("none")
    # Without a date, equal figures are equal files.
    figure.savefig(path.with_name(f"{path.name}.pdf"), metadata={"CreationDate": None})
    return picture


def figure_style() -> Any:
    """Context with the settings of all figures."""
    return matplotlib.rc_context(RC)
