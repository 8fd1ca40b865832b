"""CameraViews: what is drawn is where it is, and nothing of the route, the expert or the future is drawn."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from driving_scenes.cameras.camera import (
    BORDER,
    FIELD_OF_VIEW,
    GRASS,
    GREEN,
    HEIGHT,
    HORIZON_PLACE,
    LEFT_BORDER,
    MOUNT,
    RED,
    ROAD,
    SKY,
    TYPES,
    Camera,
    Polygons,
)
from driving_scenes.cameras.camera_views import CAMERAS, CameraViews
from driving_scenes.cameras.ground import ground_layers
from driving_scenes.cameras.lights import CASE_WIDTH, LAMP_HEIGHTS, WIDTH, lamp_faces
from driving_scenes.generator import GeneratedScenes
from driving_scenes.generator.rigid_motion import moved
from driving_scenes.scene import AGENT_TYPES, Lights
from driving_scenes.scene_file import scene_from_json, scene_to_json
from tests.driving_scenes.scenes import agent, crossing, straight_road

TALL, WIDE = 128, 256


def near(image, color, tolerance=40):
    """``[H, W]`` whether a pixel has about that color."""
    return np.abs(image.astype(int) - np.array(color)).max(-1) <= tolerance


def pixel(x, y, z=0.0, yaw=0.0):
    """Where a point of the ego's frame is in an image, column and row, by trigonometry."""
    x -= MOUNT
    angle, distance = math.atan2(y, x) - yaw, math.hypot(x, y)
    depth = distance * math.cos(angle)
    focus = WIDE / 2 / math.tan(FIELD_OF_VIEW / 2)
    return WIDE / 2 - focus * distance * math.sin(angle) / depth, HORIZON_PLACE * TALL + focus * (HEIGHT - z) / depth


def color_at(image, *place):
    """Of the pixel that shows a point of the ego's frame."""
    column, row = pixel(*place)
    return image[int(row), int(column)]


def test_road_sky_and_borders_are_where_they_are():
    image = CameraViews(straight_road(), TALL, WIDE)()
    assert image.shape == (TALL, WIDE, 3)
    assert image.dtype == np.uint8
    assert near(image[0], SKY).all()
    for (x, y), color in {(10, -1.75): ROAD, (12, 1.75): ROAD, (12, -6.0): GRASS}.items():
        assert near(color_at(image, x, y + 1.75), color, 10), (x, y)  # the ego is at y = -1.75
    # Yellow between the directions, white between the lanes of one.
    row = int(pixel(10, 0)[1])
    for y, color in {3.5: LEFT_BORDER, 0.0: BORDER, -3.5: BORDER}.items():
        column = pixel(10, y + 1.75)[0]
        columns = np.flatnonzero(near(image[row], color, 60))
        assert np.abs(columns - column).min() <= 1.5, y


@pytest.mark.parametrize("kind", range(7))
def test_boxes_are_where_agents_are(kind):
    scene = straight_road([agent("a", 16.0, -0.5, kind=AGENT_TYPES[kind], speed=2.0)])
    empty = CameraViews(straight_road(), TALL, WIDE)
    for at in (-1.0, 0.0):
        drawn = (CameraViews(scene, TALL, WIDE)(time=at) != empty(time=at)).any(-1)
        rows, columns = np.nonzero(drawn)
        rear = 16.0 + 2.0 * at - 2.3 - 8.0 * at  # seen from the ego, which drives at 8 m/s
        left, bottom = pixel(rear, 1.25 + 0.95)
        right, _ = pixel(rear, 1.25 - 0.95)
        front_left, _ = pixel(rear + 4.6, 1.25 + 0.95)
        assert columns.min() == pytest.approx(min(left, front_left), abs=1.5)
        assert columns.max() + 1 == pytest.approx(max(right, pixel(rear + 4.6, 0.3)[0]), abs=1.5)
        assert rows.max() + 1 == pytest.approx(bottom, abs=1.5)
        color = np.array(TYPES[kind]) * 0.5  # the rear
        middle = CameraViews(scene, TALL, WIDE)(time=at)[int(pixel(rear, 1.25, 0.8)[1]), int((left + right) / 2)]
        assert np.abs(middle - np.clip(color, 0, 255)).max() < 12


def test_each_camera_sees_what_is_where_it_looks():
    """One that stands ahead of a camera is in the middle of its image."""
    for camera, (_, yaw) in CAMERAS.items():
        x, y = MOUNT + 12 * math.cos(math.radians(yaw)), 12 * math.sin(math.radians(yaw)) - 1.75
        scene = straight_road([agent("there", x, y, kind="pedestrian", size=(0.8, 0.8))])
        drawn = (CameraViews(scene, TALL, WIDE)(camera) != CameraViews(straight_road(), TALL, WIDE)(camera)).any(-1)
        assert np.nonzero(drawn)[1].mean() == pytest.approx(WIDE / 2, abs=3), camera


def test_nearer_boxes_hide_farther_ones():
    truck = agent("near", 12.0, -1.75, size=(4.0, 2.6))
    hidden = agent("far", 20.0, -1.75, kind="pedestrian", size=(0.6, 0.6))
    for agents in ([truck, hidden], [hidden, truck]):
        np.testing.assert_array_equal(CameraViews(straight_road(agents))(), CameraViews(straight_road([truck]))())


def test_lights_are_seen_from_where_they_count():
    red, green = crossing(red=True), crossing(red=False)
    green = replace(green, lights=Lights(green.lights.times, green.lights.red, torch.ones_like(green.lights.red)))
    for scene, color in ((red, RED), (green, GREEN)):
        image = CameraViews(scene, TALL, WIDE)()
        found = near(image, color)
        assert found[: int(HORIZON_PLACE * TALL)].any(), "a lamp"
        assert found[int(HORIZON_PLACE * TALL) :].any(), "a mark on the road"
        assert near(color_at(image, 34.0, 0.0, 3.8), color)
    assert not near(CameraViews(crossing(red=False), TALL, WIDE)(), RED).any()
    # From the other side there is no lamp.
    poses = red.ego.poses.clone()
    poses[:, 0], poses[:, 2] = 60.0 - poses[:, 0], math.pi
    behind = CameraViews(replace(red, ego=replace(red.ego, poses=poses)), TALL, WIDE)()
    assert not near(behind, RED)[: int(HORIZON_PLACE * TALL)].any()


def test_lights_of_later_are_not_seen():
    """The scene knows its lights from t = 0 on."""
    views = CameraViews(crossing(red=True), TALL, WIDE)
    assert near(views(time=0.0), RED).any()
    assert not near(views(time=-0.5), RED).any()


def images(scene):
    views = CameraViews(scene)
    return np.stack([views(camera, at) for camera in CAMERAS for at in (-1.0, 0.0)])


@pytest.mark.parametrize("index", range(4))
def test_neither_route_nor_expert_nor_future_is_seen(index):
    scene = GeneratedScenes(3).scenes("train")[index]
    now = scene.agents.times > 0
    states, seen = scene.agents.states.clone(), scene.agents.seen.clone()
    states[:, now] += torch.randn(states[:, now].shape, generator=torch.Generator().manual_seed(index)) * 9
    seen[:, now] = ~seen[:, now]
    later = scene.lights.times > 0
    red = scene.lights.red.clone()
    red[later] = ~red[later] & (scene.lights.red | scene.lights.green).any(0)
    other = replace(
        scene,
        route=scene.route[:1],
        human=None,
        pdm_trajectory=torch.zeros(41, 3),
        centerline=torch.zeros(5, 2),
        intent=None,
        agents=replace(scene.agents, states=states, seen=seen),
        lights=Lights(scene.lights.times, red, scene.lights.green),
    )
    np.testing.assert_array_equal(images(other), images(scene))


def test_it_doesnt_matter_where_a_scene_is():
    scene = crossing([agent("a", 12.0, 3.0, speed=4.0)])
    far = images(moved(scene, 2.1, (4e5, -2e5))).astype(int)
    assert (np.abs(far - images(scene)).max(-1) > 60).mean() < 0.01  # by rounding, some borders of pixels


def test_a_border_keeps_its_width_where_it_bends():
    """Its corners lie across the mean direction of the steps before and after, however short these are."""
    content = scene_to_json(straight_road())
    outline = [[0, -2], [10, -2], [10.3, -2.4], [20, -2.4], [20, 2], [0, 2]]
    content["map"]["lanes"][0] |= {"polygon": outline, "centerline": [[0, 0], [20, 0]]}
    *_, (right, color) = ground_layers(scene_from_json(content, "bend").map, np.zeros(2))
    assert color == BORDER
    ahead = np.array([[1, 0], np.array([1.6, -0.8]) / math.hypot(1.6, 0.8)])
    aside = 0.1 * np.stack([-ahead[:, 1], ahead[:, 0]], -1)
    np.testing.assert_allclose(right[0, :2], np.array(outline[:2]) + aside, atol=1e-6)
    np.testing.assert_allclose(right[0, :-3:-1], np.array(outline[:2]) - aside, atol=1e-6)


def test_a_hole_of_a_road_is_grass():
    scene = straight_road()
    hole = torch.tensor([[9.0, -3.0], [9.0, -0.5], [12.0, -0.5], [12.0, -3.0]], dtype=torch.float64)
    blocks = scene.map.roadblocks
    polygons = replace(blocks.polygons, rings=((0, hole),))
    road_map = replace(scene.map, roadblocks=replace(blocks, polygons=polygons))
    image = CameraViews(replace(scene, map=road_map), TALL, WIDE)()
    for x, color in ((10.5, GRASS), (16.0, ROAD)):
        assert near(color_at(image, x, 0.0), color, 10)


def test_a_scene_without_anything_is_drawn():
    scene = straight_road()
    nobody = {"times": torch.zeros(0), "states": torch.zeros(0, 0, 5), "seen": torch.zeros(0, 0).bool()}
    bare = replace(scene, agents=replace(scene.agents, **nobody))
    assert CameraViews(bare, 16, 16)().shape == (16, 16, 3)


def test_polygons_are_projected_together_as_alone():
    """Of different sizes; ahead, behind, beside, and across the near plane."""
    random = np.random.default_rng(0)
    lens = Camera(np.array([1.0, -2.0, 0.4]), 0.3, 64, 96)
    middle = np.array([10.0, 0.0, 0.5])
    kinds = ((3, 2), (4, 3), (60, 2), (1, 3), (5, 3))
    parts = [
        Polygons.of(random.normal(0, 20, (count, corners, axes)) + middle[:axes], [(corners, axes, 0)] * count)
        for corners, axes in kinds
        for count in (7, 0, 30)
    ]
    alone = [
        seen
        for part in parts
        for shape, color in zip(np.split(part.corners, part.counts.cumsum()[:-1]), part.colors, strict=False)
        for seen in lens.seen(Polygons(shape, part.counts[:1], [color]))
    ]
    together = list(lens.seen(Polygons.cat(parts)))
    assert [color for _, color in together] == [color for _, color in alone] and len(alone) < 150
    assert {color[:2] for _, color in alone} == set(kinds)
    for (outline, _), (same, _) in zip(together, alone, strict=True):
        np.testing.assert_allclose(outline, same, rtol=1e-9)


def test_outlines_are_cut_at_the_near_plane():
    """A triangle with a corner behind the camera becomes a quadrangle; nothing behind is seen."""
    lens = Camera(np.array([-MOUNT, 0.0, 0.0]), 0.0, 64, 64)
    triangle = np.array([[[10.0, -1.0, 0.0], [10.0, 1.0, 0.0], [-10.0, 0.0, 0.0]]])
    ((outline, color),) = lens.seen(Polygons.of(triangle, [(1, 2, 3)]))
    corners = np.array(outline).reshape(-1, 2)
    assert color == (1, 2, 3) and len(corners) == 4
    focus = 64 / math.tan(FIELD_OF_VIEW / 2)
    assert corners[0] == pytest.approx([64 + focus * 0.1, HORIZON_PLACE * 128 + focus * HEIGHT / 10])
    assert corners[2:, 1] == pytest.approx(HORIZON_PLACE * 128 + focus * HEIGHT / 0.5)
    assert not list(lens.seen(Polygons.of(-np.abs(triangle), [(1, 2, 3)])))


def test_a_lamp_has_a_case_around_it():
    case, lamp = lamp_faces([RED], np.array([[20.0, 1.0]]), np.array([[1.0, 0.0]]), np.zeros(2)).corners
    spans = [corners.max(0) - corners.min(0) for corners in (case, lamp)]
    assert (spans[0] - spans[1]).tolist() == pytest.approx([0, 2 * CASE_WIDTH, 2 * CASE_WIDTH])
    assert spans[1].tolist() == pytest.approx([0, WIDTH, LAMP_HEIGHTS[1] - LAMP_HEIGHTS[0]])
    assert case.mean(0).tolist() == pytest.approx(lamp.mean(0).tolist())
