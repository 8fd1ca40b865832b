"""All figures of a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightning_cgrpo.reporting.figures.curves import curves
from lightning_cgrpo.reporting.figures.distribution import distribution
from lightning_cgrpo.reporting.figures.informative import informative
from lightning_cgrpo.reporting.figures.phase import phase
from lightning_cgrpo.reporting.figures.style import save, style
from lightning_cgrpo.reporting.figures.sweeps import sweep_figures
from lightning_cgrpo.reporting.runs import MethodRuns


def draw_all(methods: Sequence[MethodRuns], folder: Path) -> list[Path]:
    """Draw what there is something to draw of, and return the pictures (PNG; the PDFs lie beside them)."""
    pictures = []
    with style():
        for draw in (curves, distribution, phase, informative, sweep_figures):
            for name, figure in draw(methods):
                pictures.append(save(figure, folder / name)[0])
    return pictures
