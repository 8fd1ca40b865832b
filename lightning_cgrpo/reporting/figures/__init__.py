"""The figures of a report."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from lightning_cgrpo.reporting.figures.curves import curves, informative
from lightning_cgrpo.reporting.figures.distribution import distribution
from lightning_cgrpo.reporting.figures.phase import phase
from lightning_cgrpo.reporting.figures.style import save, style
from lightning_cgrpo.reporting.figures.sweeps import sweep_figures
from lightning_cgrpo.reporting.runs import MethodRuns
from lightning_cgrpo.reporting.sweeps import find_sweeps


def draw_all(methods: Sequence[MethodRuns], folder: Path, prefix: str = "") -> list[Path]:
    """Draw the figures that have values, and return the PNGs' paths.

    Sweeps appear only in their own figure, because their curves would fill pages.
    """
    swept = {method.label for sweep in find_sweeps(methods) for method in sweep.methods}
    single = [method for method in methods if method.label not in swept]
    with style():
        figures = [draw(single) for draw in (curves, distribution, phase, informative) if single]
        return [save(figure, folder / f"{prefix}{name}") for name, figure in chain(*figures, sweep_figures(methods))]
