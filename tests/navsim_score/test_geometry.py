"""Geometry, with shapely as oracle."""

import math

import numpy as np
import pytest
import shapely
import torch

from driving_scenes.scene import Points
from navsim_score.geometry import rectangles
from navsim_score.geometry.boxes import bounds, bounds_touch, box_corners, boxes_touch, segments_touch_boxes
from navsim_score.geometry.polygons import Polygons
from navsim_score.geometry.polylines import Polylines
from navsim_score.geometry.ranges import expand, starts
from navsim_score.geometry.shapes import polygons as shapes

FAR = np.array([333557.0, 4697225.0])
"""As positions of real scenes."""


def random_boxes(count, seed, spread=6.0):
    generator = torch.Generator().manual_seed(seed)
    pose = torch.rand(count, 3, generator=generator, dtype=torch.float64) * torch.tensor([spread, spread, 7])
    return box_corners(pose, 0.2 + 4 * torch.rand(count, 2, generator=generator, dtype=torch.float64))


def random_polygons(count, seed):
    """Stars, thin strips at all angles (as lanes are), and some that cross themselves."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        corners = rng.integers(3, 60)
        if i % 3 == 0:
            angle = np.sort(rng.uniform(0, 2 * np.pi, corners))
            radius = rng.uniform(1, 10, corners)
            row = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
        elif i % 3 == 1:
            along = np.linspace(-20, 20, corners)
            side = np.array([0, 1.75])
            bend = np.stack([along, 3 * np.sin(along / 8)], 1)
            strip = np.concatenate([bend + side, bend[::-1] - side])
            turn = rng.uniform(0, 2 * np.pi)
            row = strip @ np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
        else:
            row = rng.uniform(-10, 10, (corners % 9 + 3, 2))
        rows.append(row + rng.uniform(-5, 5, 2))
    return rows


def as_polygons(rows):
    return Polygons.of([Points.polygons(rows).xy])


def assert_as_shapely(polygons, oracle, places, boxes, kept=slice(None)):
    """Each polygon contains places, and touches boxes of its own, where shapely's does."""
    rows = torch.arange(len(oracle))
    inside = [shapely.contains_xy(shape, *at.numpy().T) for shape, at in zip(oracle, places, strict=True)]
    assert np.array_equal(polygons.contain(places, rows).numpy()[kept], np.stack(inside)[kept])
    touching = shapely.intersects(shapely.polygons(boxes.numpy()), np.array(oracle)[:, None])
    found = polygons.touch_boxes(boxes.flatten(0, 1), rows.repeat_interleave(boxes.shape[1])).numpy()
    assert np.array_equal(found.reshape(touching.shape)[kept], touching[kept])
    assert 0.1 < touching.mean() < 0.9


def test_expand_counts_within_rows():
    row, number = expand(torch.tensor([2, 0, 3]))
    assert row.tolist() == [0, 0, 2, 2, 2]
    assert number.tolist() == [0, 1, 0, 1, 2]
    assert expand(torch.tensor([2, 0, 3]), torch.tensor([5, 9, 1]))[1].tolist() == [5, 6, 1, 2, 3]
    assert starts(torch.tensor([2, 0, 3])).tolist() == [0, 2, 2, 5]


def test_boxes_touch_where_shapely_says_they_intersect():
    a, b = random_boxes(3000, 0), random_boxes(3000, 1)
    expected = shapely.intersects(shapely.polygons(a.numpy()), shapely.polygons(b.numpy()))
    assert 0.2 < expected.mean() < 0.9
    assert np.array_equal(boxes_touch(a, b).numpy(), expected)
    assert np.array_equal(boxes_touch(b, a).numpy(), expected)
    assert bounds_touch(bounds(a), bounds(b))[torch.from_numpy(expected)].all()


def test_segments_touch_boxes_where_shapely_says_they_intersect():
    box = random_boxes(3000, 2)
    segment = torch.rand(3000, 2, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 8
    expected = shapely.intersects(shapely.linestrings(segment.numpy()), shapely.polygons(box.numpy()))
    assert 0.2 < expected.mean() < 0.9
    assert np.array_equal(segments_touch_boxes(segment[:, 0], segment[:, 1], box).numpy(), expected)


def test_boxes_that_share_an_edge_or_a_corner_touch():
    size = torch.tensor([2.0, 2.0], dtype=torch.float64)
    here = box_corners(torch.zeros(3, dtype=torch.float64), size)
    for x, y, touching in ((2, 0, True), (2, 2, True), (2.0000001, 0, False), (0.5, 0.5, True)):
        there = box_corners(torch.tensor([x, y, 0], dtype=torch.float64), size)
        assert bool(boxes_touch(here, there)) is touching
    along = torch.tensor([[1.0, -5.0], [1.0, 5.0]], dtype=torch.float64)
    assert bool(segments_touch_boxes(along[0], along[1], here))


@pytest.mark.parametrize(("seed", "offset"), [(0, 0.0 * FAR), (1, 0.0 * FAR), (2, FAR)])
def test_points_are_in_polygons_where_shapely_says_so(seed, offset):
    rows = [row + offset for row in random_polygons(30, seed)]
    polygons = as_polygons(rows)
    points = torch.rand(30, 800, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 50 - 25
    points = points + torch.from_numpy(offset)
    inside = polygons.contain(points, torch.arange(30))
    expected = [shapely.contains_xy(shapely.Polygon(row), *points[i].numpy().T) for i, row in enumerate(rows)]
    assert np.array_equal(inside.numpy(), np.stack(expected))
    assert 0.02 < inside.double().mean() < 0.5


def test_the_boundary_is_not_in_a_polygon():
    square = [[0.0, 0.0], [4.0, 0.0], [4.0, 4.0], [0.0, 4.0]]
    diamond = [[4.0, 0.0], [8.0, 4.0], [4.0, 8.0], [0.0, 4.0]]
    notched = [[0.0, 0.0], [8.0, 0.0], [8.0, 8.0], [4.0, 2.0], [0.0, 8.0]]
    long = [[0.0, 0.0], [300.0, 0.0], [300.0, 4.0], [0.0, 4.0]]
    stairs = [[0.0, 0.0], [8.0, 0.0], [8.0, 4.0], [4.0, 4.0], [4.0, 3.5], [3.0, 3.5], [3.0, 8.0], [0.0, 8.0]]
    rows = [square, diamond, notched, long, stairs]
    grid = torch.tensor([[x / 2, y / 2] for x in range(-1, 18) for y in range(-1, 18)], dtype=torch.float64)
    inside = as_polygons(rows).contain(grid.expand(5, -1, -1), torch.arange(5))
    for row, found in zip(rows, inside, strict=True):
        assert np.array_equal(found.numpy(), shapely.contains_xy(shapely.Polygon(row), *grid.numpy().T))


def test_boxes_touch_polygons_where_shapely_says_they_intersect():
    rows = [row for i, row in enumerate(random_polygons(60, 5)) if i % 3 < 2]  # shapely wants valid ones here
    boxes = random_boxes(len(rows) * 40, 6, spread=24) - 12
    which = torch.arange(len(rows)).repeat_interleave(40)
    found = as_polygons(rows).touch_boxes(boxes, which)
    shapes = np.array([shapely.Polygon(row) for row in rows])
    expected = shapely.intersects(shapely.polygons(boxes.numpy()), shapes[which.numpy()])
    assert 0.1 < expected.mean() < 0.9
    assert np.array_equal(found.numpy(), expected)


def test_holes_are_outside_where_shapely_says_so():
    """Of rings in the middle of stars; boxes inside a hole don't touch the polygon around it."""
    rng = np.random.default_rng(7)
    angles = np.sort(rng.uniform(0, 2 * np.pi, (20, 30)))
    circle = np.stack([np.cos(angles), np.sin(angles)], -1)
    rows, rings = circle * rng.uniform(6, 12, (20, 30, 1)) + 3, circle * rng.uniform(2, 4, (20, 30, 1)) + 3
    small = 0.5 * circle[::-1, ::3] + 3  # a second one in some, in the way of nothing
    holes = [[ring] if row % 3 else [ring + 0.2, small[row] - [5, 0]] for row, ring in enumerate(rings)]
    holes[4] = []
    points = Points.polygons(rows, holes)
    polygons = Polygons.of([points.xy[:7], points.xy[7:]], points.rings)
    places = torch.rand(20, 500, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 26 - 10
    expected = shapes(points)
    valid = np.array([polygon.is_valid for polygon in expected])
    assert valid.sum() > 10
    boxes = random_boxes(20 * 60, 9, spread=20) - 6
    assert_as_shapely(polygons, expected, places, boxes.unflatten(0, (20, 60)), valid)


def test_further_parts_are_inside_where_shapely_says_so():
    """Parts beside the first ring, with and without holes; also parts far outside of its bounds."""
    rng = np.random.default_rng(11)
    angles = np.sort(rng.uniform(0, 2 * np.pi, (12, 20)))
    circle = np.stack([np.cos(angles), np.sin(angles)], -1)
    first = circle * rng.uniform(4, 6, (12, 20, 1))
    beside = circle * rng.uniform(3, 5, (12, 20, 1)) + [14, -9]
    hole = circle * rng.uniform(1, 2, (12, 20, 1)) + [14, -9]
    small = circle * 0.5 - [12, 0]
    further = [[beside[row], hole[row], small[row]] if row % 2 else [small[row], beside[row]] for row in range(12)]
    points = Points.polygons(first, further)
    polygons = Polygons.of([points.xy], points.rings)
    oracle = []
    for row, rings in enumerate(further):
        shape = shapely.Polygon(first[row])
        for ring in rings:
            shape = shape.symmetric_difference(shapely.Polygon(ring))
        oracle.append(shape)
    made = shapes(points)
    assert all(shapely.equals(shape, wanted) for shape, wanted in zip(made, oracle, strict=True))
    places = torch.rand(12, 800, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 40 - 18
    boxes = random_boxes(12 * 100, 9, spread=40) - 18
    assert_as_shapely(polygons, oracle, places, boxes.unflatten(0, (12, 100)))


def test_a_box_within_a_polygon_touches_it_and_so_does_one_around_it():
    square = as_polygons([[[0.0, 0.0], [10.0, 0.0], [10.0, 10.0], [0.0, 10.0]]])
    poses = torch.tensor([[5.0, 5, 0.3], [5, 5, 0], [20, 5, 0], [11, 5, 0]], dtype=torch.float64)
    sizes = torch.tensor([[1.0, 1], [40, 40], [1, 1], [2, 2]], dtype=torch.float64)
    found = square.touch_boxes(box_corners(poses, sizes), torch.zeros(4, dtype=torch.int64))
    assert found.tolist() == [True, True, False, True]


def test_no_polygons_and_no_points():
    nothing = Polygons.of([Points.polygons([]).xy])
    assert len(nothing.bounds) == 0
    assert nothing.contain(torch.zeros(0, 3, 2, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)).shape == (0, 3)
    flat = as_polygons([[[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]], [[0.0, 0.0], [2.0, 0.0], [1.0, 0.0]]])
    points = torch.tensor([[[1.0, 1.0]], [[1.0, 0.0]]], dtype=torch.float64)
    assert not flat.contain(points, torch.arange(2)).any()


def random_lines(seed):
    rng = np.random.default_rng(seed)
    lines = [np.cumsum(rng.uniform(-1, 2, (count, 2)), 0) for count in (2, 9, 10, 40)]
    lines.append(np.repeat(lines[2], 2, 0))  # points twice
    return lines


def test_projection_and_distance_are_those_of_shapely():
    lines = random_lines(0)
    polylines = Polylines.of(Points.polylines(lines).xy)
    points = torch.rand(len(lines), 200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 30 - 5
    row = torch.arange(len(lines))
    along = polylines.project(points.flatten(0, 1), row.repeat_interleave(200)).view(len(lines), 200)
    for i, line in enumerate(lines):
        curve, at = shapely.LineString(line), shapely.points(points[i].numpy())
        assert np.allclose(along[i], shapely.line_locate_point(curve, at), atol=1e-9)
        for distance in (0.1, 0.5, 3.0):
            found = polylines.within(points[i : i + 1], row[i : i + 1], distance)[0]
            assert np.array_equal(found.numpy(), shapely.distance(curve, at) <= distance)


def test_rectangles_that_share_an_edge_touch():
    """Along each of the four lines that could separate them."""
    long, wide = (torch.tensor(size, dtype=torch.float64) for size in ([4.0, 2.0], [2.0, 6.0]))
    here = rectangles.from_boxes(torch.zeros(3, dtype=torch.float64), long)
    for x, y, yaw in ((3.0, 0.0, 0.0), (0.0, 4.0, 0.0), (5.0, 0.0, math.pi / 2), (0.0, 2.0, math.pi / 2)):
        for by, touching in ((0.0, True), (1e-9, False)):
            far = 1 + by
            there = rectangles.from_boxes(torch.tensor([x * far, y * far, yaw], dtype=torch.float64), wide)
            assert bool(rectangles.touch(here, there)) == touching, (x, y, yaw)
            assert bool(rectangles.touch(there, here)) == touching, (x, y, yaw)
