"""Where the official score has a quirk that is a plain defect: what to do instead. See docs/navsim_score.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fixes:
    """Each is off by default, as official scores have the quirk. Those of reactive traffic are `Reactive`'s options.

    The expert's plan is chosen as it officially is, whatever is fixed here.

    Args:
        masked_progress: of EP (1.7). Officially a candidate's progress isn't multiplied by its own NC, DAC, DDC and TLC
            where it is compared with the most that is made: one that collides but is faster than the expert gets 1.
            Fixed, it is.
        current_speed: of NC (1.6). Officially an agent counts as stopped if it stood when it was first seen. Fixed, if
            it stands at the time of the contact.
        gapless_history: of HC (1.7). Officially the sample of the history at -0.1 s is dropped, and what is left is put
            before the drive as if it were contiguous. Fixed, the history is sampled up to -0.1 s.
    """

    masked_progress: bool = False
    current_speed: bool = False
    gapless_history: bool = False


OFFICIAL = Fixes()
"""No fixes."""
