"""What is in a picture, and where."""

import numpy as np
import pytest
import torch
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba

from driving_scenes.generator.rigid_motion import moved
from navsim_score.render import style
from navsim_score.render.draw import draw
from navsim_score.scorer import Scorer
from tests.driving_scenes.scenes import agent, straight, straight_road

TO_THE_SIDE = straight(left=-3.0)


def picture(scene, candidates, **options):
    poses = torch.stack(candidates)
    scorer = Scorer([scene], human_filter=False)
    scores = scorer(poses, torch.zeros(len(poses), dtype=torch.int64))
    return draw(scene, poses, scores, centerline=scorer.plans[0].centerline, **options), scores


def texts(axes):
    return [text.get_text() for text in axes.texts]


def boxes(axes, color):
    """Filled polygons of a color, as ``[n, 4 or more, 2]`` in the picture's frame."""
    parts = [part for part in axes.collections if isinstance(part, PolyCollection) and len(part.get_facecolor())]
    filled = [part for part in parts if np.allclose(part.get_facecolor()[0], color)]
    return [path.vertices for part in filled for path in part.get_paths()]


def test_the_ego_looks_up_wherever_the_scene_lies():
    scene = straight_road([agent("other", 20.0, 1.75, size=(4.0, 2.0))])
    for motion in ((0.0, (0.0, 0.0)), (2.0, (500.0, -300.0))):
        figure, _ = picture(moved(scene, *motion), [straight()])
        axes, beside = figure.axes
        # The other is 20 m ahead and 3.5 m to the left.
        [box] = boxes(axes, to_rgba(style.AGENTS["vehicle"]))
        assert box[:4].mean(0) == pytest.approx([-3.5, 20.0])
        assert np.ptp(box[:4], 0) == pytest.approx([2.0, 4.0])
        low, high = axes.get_ylim()
        assert low < -5 and high > 35
        assert "made by hand" in texts(beside)


def test_candidates_are_told_by_score_and_marked_where_they_violate():
    scene = straight_road([agent("parked", 30.0, -1.75)])
    plans = [straight(acceleration=-3.0), straight(), TO_THE_SIDE]
    figure, scores = picture(scene, plans, tags=["brake", None, "side"])
    axes, beside = figure.axes
    listed = texts(beside)
    assert listed.index("0  brake") < listed.index("1")
    for short, name in style.MARKED.items():
        for row in range(3):
            step = int(scores.steps[name][row])
            if step < 0:
                continue
            # A mark of its kind is near the ego's center of that time, and its time is in the list.
            kinds = [line for line in axes.lines if line.get_marker() == style.MARKS[short]]
            x, y = scores.states[row, step, :2].tolist()
            places = [(line.get_xdata()[0], line.get_ydata()[0]) for line in kinds]
            assert any(abs(ahead - (x + 1.461)) < 0.3 and abs(aside + y + 1.75) < 4 for aside, ahead in places)
            assert any(f"{short} {step / 10:.1f}" in text for text in listed)
    assert int(scores.steps["no_at_fault_collisions"][1]) > 0
    assert int(scores.steps["drivable_area_compliance"][2]) > 0
    colors = {to_rgba(line.get_color()) for line in axes.lines}
    assert {style.SCORES(float(score)) for score in scores.epdms} <= colors


def test_malformed_and_jumping_candidates_dont_spoil_the_picture():
    malformed = torch.full((8, 3), torch.nan, dtype=torch.float64)
    away = straight() * torch.tensor([1e5, 1.0, 1.0])
    figure, scores = picture(straight_road(), [straight(), malformed, away])
    axes, beside = figure.axes
    assert not scores.valid[1]
    assert texts(beside).count("malformed") == 1
    assert axes.get_ylim()[1] - axes.get_ylim()[0] < 200
    figure.canvas.draw()
    # Nothing but a malformed one: still the scene.
    figure, _ = picture(straight_road(), [malformed])
    figure.canvas.draw()
