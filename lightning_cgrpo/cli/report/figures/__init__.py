"""The figures of a report."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from lightning_cgrpo.cli.report.figures.curves import curves
from lightning_cgrpo.cli.report.figures.style import figure_style, save_figure
from lightning_cgrpo.cli.report.figures.timeline import front, timeline
from lightning_cgrpo.cli.report.methods import MethodRuns


def draw_all(methods: Sequence[MethodRuns], folder: Path) -> list[Path]:
    """Draw the figures that have values, and return the PNGs' paths."""
    with figure_style():
        figures = chain(timeline(methods), front(methods), curves(methods))
        return [save_figure(figure, folder / name) for name, figure in figures]
