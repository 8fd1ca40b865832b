"""The picture of a group shows its episodes, and nothing else's."""

import pytest
import torch
from matplotlib.colors import to_rgba

from lightning_cgrpo.core.rollout import PromptGroups, Rollouts
from lightning_cgrpo.tasks.gridworld import GridworldRenderer, GridworldTask

UP, DOWN, LEFT, RIGHT, STAY = range(5)
SIZE = 4


@pytest.fixture
def scene():
    """Two prompts; to the second, two episodes: over lava to the goal, and into a wall (with steps after its end)."""
    start, goal = torch.tensor([3, 0]), torch.tensor([0, 2])
    lava = torch.zeros(2, SIZE * SIZE, dtype=torch.bool)
    lava[1, 1] = True
    actions = torch.tensor([[[STAY] * 3] * 2, [[RIGHT, RIGHT, UP], [LEFT, DOWN, RIGHT]]])
    mask = torch.tensor([[[1, 0, 0]] * 2, [[1, 1, 0], [1, 1, 1]]]).bool()
    info = {
        "goal": torch.tensor([[[0, 0, 0]] * 2, [[0, 1, 0], [0, 0, 0]]]).bool(),
        "lava": torch.tensor([[[0, 0, 0]] * 2, [[1, 0, 0], [0, 0, 0]]]).bool(),
        "battery": torch.tensor([[[0, 0, 0]] * 2, [[0, 1, 0], [0, 0, 0]]]).bool(),
    }
    prompts = PromptGroups(torch.tensor([7, 8]), {"start": start, "goal": goal, "lava": lava})
    rollouts = Rollouts(actions, mask, {}, info=info)
    return prompts, rollouts, GridworldTask().score(prompts, rollouts)


def parts(figure):
    """Paths, crosses and rings of a figure, as pairs of (cells (x, y), line)."""
    [axes] = figure.axes
    lines = [([(round(x), round(y)) for x, y in line.get_xydata()], line) for line in axes.get_lines()]
    return [[pair for pair in lines if pair[1].get_marker() == marker] for marker in ("None", "x", "o")]


def test_paths_and_marks(scene, tmp_path):
    """A path per episode through the cells it visited, green if it reached the goal, with marks at its violations."""
    figure = GridworldRenderer().render(*scene, row=1)
    paths, crosses, rings = parts(figure)
    assert [cells for cells, _ in paths] == [[(0, 0), (1, 0), (2, 0)], [(0, 0), (0, 0), (0, 1), (1, 1)]]
    assert [to_rgba(line.get_color()) for _, line in paths] == [to_rgba("tab:green"), to_rgba("tab:gray")]
    assert [cells for cells, _ in crosses] == [[(1, 0)], []]
    assert [cells for cells, _ in rings] == [[(2, 0)], []]
    [axes] = figure.axes
    assert {text.get_text(): text.get_position() for text in axes.texts} == {"S": (0, 0), "G": (2, 0)}
    assert axes.get_title() == "goal 1/2   rates: lava 20.0%  battery 20.0%"
    image = axes.get_images()[0].get_array()
    assert image.shape == (SIZE, SIZE) and image.sum() == image[0, 1] == 1
    figure.savefig(tmp_path / "episodes.png")
    content = (tmp_path / "episodes.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n" and len(content) > 2000


def test_paths_over_the_same_cells_can_be_told_apart(scene):
    paths, *_ = parts(GridworldRenderer().render(*scene, row=0))
    (first, one), (second, other) = paths
    assert first == second == [(3, 0), (3, 0)]
    assert not (one.get_xydata() == other.get_xydata()).any()
