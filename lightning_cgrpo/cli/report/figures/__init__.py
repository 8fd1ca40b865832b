"""The figures of a report."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from lightning_cgrpo.cli.report.figures.curves import curves
from lightning_cgrpo.cli.report.figures.style import save, style
from lightning_cgrpo.cli.report.figures.sweeps import find_sweeps, sweep_figures
from lightning_cgrpo.cli.report.figures.timeline import front, timeline
from lightning_cgrpo.cli.report.methods import MethodRuns


def draw_all(methods: Sequence[MethodRuns], folder: Path) -> list[Path]:
    """Draw the figures that have values, and return the PNGs' paths.

    Sweeps appear only in their own figure, because their curves would fill pages.
    """
    sweeps = find_sweeps(methods)
    swept = {method.label for sweep in sweeps for method in sweep.methods}
    single = [method for method in methods if method.label not in swept]
    with style():
        figures = chain(timeline(single), front(single), curves(single), sweep_figures(sweeps))
        return [save(figure, folder / name) for name, figure in figures]
