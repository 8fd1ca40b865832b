"""Layouts: valid, determined by their index alone, and spread over the grid."""

import pytest
import torch

from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.tasks.gridworld import Layouts
from tests.refusals import refused


def rows(groups):
    columns = groups.columns
    burning = [tuple(tiles.nonzero().flatten().tolist()) for tiles in columns["lava"]]
    return list(zip(columns["start"].tolist(), columns["goal"].tolist(), burning, strict=True))


@pytest.mark.parametrize(("size", "lava"), [(10, 20), (10, 98), (3, 0), (2, 2)])
def test_start_goal_and_lava_never_coincide(size, lava):
    """Also where lava leaves no other cell than these two."""
    for start, goal, tiles in rows(Layouts(500, size=size, lava=lava).groups(torch.arange(500))):
        assert start != goal and start not in tiles and goal not in tiles
        assert len(tiles) == lava and 0 <= min(start, goal) <= max(start, goal) < size * size


def test_all_cells_are_equally_likely():
    """Counts of each cell as start, goal and lava lie within five standard deviations of the expected ones."""
    total = 4000
    columns = Layouts(total).groups(torch.arange(total)).columns
    for counts, share in (
        (torch.bincount(columns["start"], minlength=100), 0.01),
        (torch.bincount(columns["goal"], minlength=100), 0.01),
        (columns["lava"].sum(0), 0.2),
    ):
        deviation = (total * share * (1 - share)) ** 0.5
        assert (counts - total * share).abs().max() < 5 * deviation


def test_a_layout_depends_on_its_index_and_nothing_else():
    layouts = Layouts(100)
    everything = rows(layouts.groups(torch.arange(100)))
    picked = [17, 3, 99, 3]
    groups = layouts.groups(torch.tensor(picked))
    assert groups.index.tolist() == picked
    assert rows(groups) == [everything[index] for index in picked]
    # More layouts don't change the first ones.
    assert rows(Layouts(5000).groups(torch.arange(100))) == everything
    assert len(set(everything)) == 100


def test_seeds_and_splits_give_other_layouts():
    every = (Layouts(50, split=split, seed=seed) for seed in (0, 1) for split in (0, 1, 2))
    drawn = [row for layouts in every for row in rows(layouts.groups(torch.arange(50)))]
    assert len(set(drawn)) == len(drawn) == 300


def test_data_module_hands_on_its_settings():
    data = GridworldDataModule(train_prompts=70, val_prompts=30, test_prompts=20, size=6, lava=7, seed=3)
    splits = {split: data.source(split) for split in ("train", "val", "test")}
    assert [len(source) for source in splits.values()] == [70, 30, 20]
    found = {split: rows(source.groups(torch.arange(20))) for split, source in splits.items()}
    assert not set(found["train"]) & set(found["val"]) and not set(found["val"]) & set(found["test"])
    assert found["train"] == rows(Layouts(20, split=0, seed=3, size=6, lava=7).groups(torch.arange(20)))
    assert all(len(lava) == 7 and max(start, goal, *lava) < 36 for start, goal, lava in found["train"])


@pytest.mark.parametrize("lava", [-1, 8])
def test_lava_leaves_room_for_start_and_goal(lava):
    assert f"at most 7 tiles, but got {lava}" in refused(lambda: Layouts(1, size=3, lava=lava))
