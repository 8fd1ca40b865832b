"""Areas under the ego on lanes whose borders the box crosses."""

from types import SimpleNamespace

import pytest
import torch

from navsim_score.scoring.areas import ego_areas


class Rectangles:
    """Lanes along x, each from one y to another."""

    def __init__(self, *lanes: tuple[float, float]) -> None:
        self.y = torch.tensor(lanes)
        ends = torch.full((len(lanes),), 100.0)
        self.bounds = torch.stack([-ends, self.y[:, 0], ends, self.y[:, 1]], 1)

    def contain(self, points: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        low, high = self.y[rows].unbind(1)
        return (points[..., 1] >= low[:, None]) & (points[..., 1] <= high[:, None])


def several_lanes(y: float, *lanes: tuple[float, float]) -> bool:
    """Whether a box of width 2 around y is on several lanes."""
    corners = torch.tensor([[2.0, y + 1], [2.0, y - 1], [-2.0, y - 1], [-2.0, y + 1]])
    center = torch.tensor([[0.0, y]])
    motion = SimpleNamespace(
        corners=corners.expand(1, 41, 4, 2),
        centers=center.expand(1, 41, 2),
        states=center.expand(1, 41, 2),
        bounds=torch.tensor([[-2.0, y - 1, 2.0, y + 1]]),
        scene=torch.tensor([0]),
    )
    every = torch.ones(1, len(lanes), dtype=torch.bool)
    surfaces = SimpleNamespace(
        polygons=Rectangles(*lanes),
        table=torch.arange(len(lanes))[None],
        **dict.fromkeys(("lane", "on_route", "drivable", "intersection"), every),
    )
    [flags] = ego_areas(surfaces, motion).multiple_lanes
    assert flags.all() or not flags.any()
    return bool(flags[0])


@pytest.mark.parametrize(
    ("y", "lanes", "several"),
    [
        (2.0, [(0, 4), (4, 8)], False),  # on its lane
        (4.0, [(0, 4), (4, 8)], True),  # on the line between two
        (4.0, [(0, 4)], False),  # half off its only lane
        (4.0, [(0, 4), (4, 8), (2, 6)], False),  # a third lane has it whole
        (20.0, [(0, 4), (4, 8)], False),  # on none
    ],
)
def test_several_lanes(y: float, lanes: list[tuple[float, float]], several: bool) -> None:
    assert several_lanes(y, *lanes) == several
