"""The figures of a report. Each function makes pages of one kind; `draw_all` knows them all."""

from lightning_cgrpo.reporting.figures.all import draw_all

__all__ = ["draw_all"]
