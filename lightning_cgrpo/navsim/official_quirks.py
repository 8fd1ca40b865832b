"""Fixes of defects in the official score, see docs/navsim_score.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fixes:
    """Options instead of official quirks, all off by default; `Reactive` has those of reactive traffic.

    No fix changes the expert's choice of its plan.

    Args:
        masked_progress: EP (§7): multiply the candidate's progress by its NC, DAC, DDC and TLC in the numerator too.
            Officially a colliding candidate that is faster than the expert gets 1.
        current_speed: NC (§6): an agent is stopped if it stands at the time of the contact, officially if it stood
            when first seen.
        gapless_history: HC (§7): sample the history up to -0.1 s. Officially the sample at -0.1 s is dropped.
    """

    masked_progress: bool = False
    current_speed: bool = False
    gapless_history: bool = False


OFFICIAL = Fixes()
"""No fixes."""
