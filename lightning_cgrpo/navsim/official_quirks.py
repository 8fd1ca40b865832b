"""Fixes of official defects (docs/navsim_score.md)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fixes:
    """Options instead of official quirks, all off by default; reactive traffic: see `Reactive`.

    The expert's choice of its plan stays official.

    Args:
        masked_progress: EP (§7): mask the candidate's progress by NC, DAC, DDC and TLC in the numerator too.
            Officially a colliding candidate faster than the expert gets 1.
        current_speed: NC (§6): an agent counts as stopped by its speed at contact. Officially its speed when first
            seen decides.
        gapless_history: HC (§7): sample the history up to -0.1 s. Officially the last sample is dropped.
    """

    masked_progress: bool = False
    current_speed: bool = False
    gapless_history: bool = False


OFFICIAL = Fixes()
