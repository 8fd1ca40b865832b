"""Answers: any text is read or malformed, in linear time; waypoints lead where the authors' rules lead them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.interpolate import CubicSpline

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.tasks.driving.answers import REACH, AnswerFormat, format_number, format_points

TWO = AnswerFormat(waypoints=2)


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("[3.0,0.2], [6.6,1.4]", [[3.0, 0.2], [6.6, 1.4]]),
        ("Future trajectory: [3,.2],\n(6. , -1.4e0) and that's it", [[3.0, 0.2], [6.0, -1.4]]),
        ("[[+3.0, 0.2], [6.6,1.4]]", [[3.0, 0.2], [6.6, 1.4]]),
        ("[3,0][6E+1,1e-300]", [[3.0, 0.0], [60.0, 1e-300]]),
        (f"[{REACH},-{REACH}] [0,0]", [[REACH, -REACH], [0.0, 0.0]]),
    ],
)
def test_well_formed(text, points):
    assert TWO.read(text).tolist() == points


SECOND = ("[6.6]", "[x,1.4]", "[6.6,1.4", "[nan,1.4]", "[6.6,1e999]", f"[{REACH + 1},0]", "[1_0,1.4]", "[٦,1.4]")
SECOND += ("[6.6,1.4], [9,9]", "[6.6,\N{MINUS SIGN}1.4]", f"[{'0' * 100},1.4]")
"""What is no second waypoint, or more than that."""


@pytest.mark.parametrize(
    "text", ["", "[3.0,0.2]", "(soon) [3.0,0.2], [6.6,1.4]", *(f"[3.0,0.2], {second}" for second in SECOND)]
)
def test_malformed(text):
    assert TWO.read(text) is None


HOSTILE = st.text(alphabet="[]()0123456789.,-+eE \n\0xnaif\ud800²٣")


@settings(max_examples=300, deadline=None)
@given(text=st.one_of(st.text(), HOSTILE), count=st.integers(2, 5))
@example(text="[1,2]" * 5, count=5)
def test_any_text_gives_waypoints_or_none(text, count):
    found = AnswerFormat(count).read(text)
    if found is not None:
        assert found.shape == (count, 2)
        assert found.dtype == torch.float64
        assert bool((found.abs() <= REACH).all())
        poses = AnswerFormat(count).poses(found[None])
        assert bool(poses.isfinite().all())


POINTS = st.lists(st.tuples(*[st.floats(-400, 400, allow_nan=False)] * 2), min_size=4, max_size=4)


@settings(max_examples=200, deadline=None)
@given(points=POINTS, before=st.text(alphabet="abc \n.:,"), after=st.text(alphabet="xyz \n.0"))
def test_what_is_written_is_read(points, before, after):
    found = AnswerFormat().read(before + format_points(points) + after)
    np.testing.assert_allclose(found.numpy(), points, rtol=0, atol=0.05 + 1e-9)


def test_numbers_have_one_decimal_and_no_minus_zero():
    assert [format_number(value) for value in (-0.04, 0.0, 3.14159, -12.25, 100.0)] == [
        "0.0",
        "0.0",
        "3.1",
        "-12.2",
        "100.0",
    ]


def test_a_trajectory_as_text():
    t = torch.arange(1, 41, dtype=torch.float64) / 10
    poses = torch.stack([5 * t, -0.1 * t**2, t], 1)
    assert AnswerFormat().write(poses, 0.1) == "[5.0,-0.1], [10.0,-0.4], [15.0,-0.9], [20.0,-1.6]"
    assert AnswerFormat(8, 0.5).write(poses, 0.1).startswith("[2.5,0.0], [5.0,-0.1], [7.5,-0.2]")
    assert AnswerFormat(2, 1.25).write(poses[4::5], 0.5) == "[6.2,-0.2], [12.5,-0.6]"  # between the poses
    with pytest.raises(UserError, match=r"a trajectory of 5 s, .* of 5 waypoints, but got one of 4 s, try fewer"):
        AnswerFormat(5).write(poses, 0.1)


def by_hand(points, interval, seconds):
    """The authors' rules (docs/navsim_score_scenes.md §14), one trajectory and one pose after the other."""
    knots = [np.zeros(2), *np.array(points)]
    times = [interval * step for step in range(len(knots))]
    end = int(min(4.0, seconds) / 0.25 + 1e-6)
    if np.linalg.norm(knots[-1]) < 0.1:
        return np.zeros((end, 3))
    cut = next((i + 1 for i in range(len(knots) - 1) if np.linalg.norm(knots[i + 1] - knots[i]) < 0.2), len(knots))
    smooth = (
        [CubicSpline(times[:cut], [k[a] for k in knots[:cut]], bc_type="natural") for a in (0, 1)] if cut > 2 else []
    )
    path = []
    for step in range(1, end + 1):
        at = 0.25 * step
        if smooth and at <= times[cut - 1]:
            path.append([float(axis(at)) for axis in smooth])
        else:
            path.append([float(np.interp(at, times, [k[a] for k in knots])) for a in (0, 1)])
    steps = np.gradient(np.array(path), axis=0)
    yaw = [math.atan2(y, x) for x, y in steps]
    for i in range(1, end):
        if np.linalg.norm(steps[i]) < 0.1:
            yaw[i] = yaw[i - 1]
    for i in range(end - 2, -1, -1):
        if np.linalg.norm(steps[i]) < 0.1:
            yaw[i] = yaw[i + 1]
    return np.column_stack([path, yaw])


# Far from every bound, where rounding would decide.
STEP = st.tuples(st.sampled_from([0.0, 0.0531, 0.1573, 1.0379, 6.0]), st.sampled_from([-2.0113, 0.0, 0.0557, 3.0]))


@settings(max_examples=150, deadline=None)
@given(
    form=st.sampled_from([AnswerFormat(), AnswerFormat(5), AnswerFormat(8, 0.5), AnswerFormat(3)]),
    steps=st.lists(STEP, min_size=8, max_size=8),
    other=st.integers(1, 50),
)
def test_interpolation_is_that_of_the_authors(form, steps, other):
    points = np.cumsum(steps, 0)[: form.waypoints]
    faster = points * other
    found = form.poses(torch.from_numpy(np.stack([points, faster])))
    for row, expected in zip(found.numpy(), (points, faster), strict=True):
        difference = row - by_hand(expected, form.interval, form.seconds)
        # Pi and -pi are the same heading.
        difference[:, 2] = (difference[:, 2] + np.pi) % (2 * np.pi) - np.pi
        np.testing.assert_allclose(difference, 0, rtol=0, atol=1e-9)


def test_trajectories_of_texts_are_nan_where_malformed():
    """One reading for the task and the callbacks; malformed neighbors change nothing."""
    answer = AnswerFormat()
    texts = ["[3,0], [6,1], [9,2], [12,4]", "no", "[1,0], [2,0], [3,0], [4,0]", "[1,0]"]
    found = answer.trajectories(texts)
    assert found.shape == (4, 16, 3)
    for row in (0, 2):
        assert torch.equal(found[row], answer.poses(answer.read(texts[row])[None])[0])
    assert bool(found[[1, 3]].isnan().all())
    assert answer.trajectories([]).shape == (0, 16, 3)
    assert bool(answer.trajectories(["no"]).isnan().all())
