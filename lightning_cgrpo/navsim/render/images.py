"""Beside the picture: what cameras saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from lightning_cgrpo.navsim.render import style


def draw_images(axes: Sequence[Axes], images: Mapping[str, NDArray[np.uint8]]) -> None:
    """Images ``[h, w, 3]`` with what is written above them; axes that are left over stay empty."""
    for each in axes:
        each.set_axis_off()
    for each, (label, image) in zip(axes, images.items(), strict=False):
        each.imshow(image, interpolation="nearest")
        each.set_title(label, fontsize=8, color=style.INK, loc="left", pad=3)
