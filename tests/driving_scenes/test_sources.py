"""What all sources share: scenes are built when they are indexed, and the splits share no log."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driving_scenes.errors import InputError
from driving_scenes.files import SceneFiles
from driving_scenes.logs import deal, in_part
from driving_scenes.source import Scenes


def write(folder: Path, name: str, **fields: Any) -> Path:
    """A scene without a road or anyone else."""
    empty: dict[str, Any] = {"lanes": [], "roadblocks": [], "intersections": [], "carparks": []}
    ego = [{"t": 0.0, "pose": [0.0, 0.0, 0.0], "velocity": [1.0, 0.0], "acceleration": [0.0, 0.0]}]
    content = {"name": name, "scene_type": "original", "map": empty, "route": [], "ego": ego, "agents": []}
    path = folder / f"{name}.scene.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | fields))
    return path


def names(source: SceneFiles) -> list[list[str]]:
    return [[scene.name for scene in source.scenes(split)] for split in ("train", "val", "test")]


def test_scenes_are_built_when_they_are_indexed() -> None:
    built = []

    def build(key: int) -> Any:
        built.append(key)
        return f"scene {key}"

    scenes = Scenes([10, 11, 12, 13], build)
    assert len(scenes) == len(scenes[:]) == 4
    assert built == []
    assert scenes[2] == "scene 12"
    assert scenes[-1] == "scene 13"
    part = scenes[1:3]
    assert built == [12, 13]
    assert list(part) == ["scene 11", "scene 12"]
    with pytest.raises(IndexError):
        scenes[4]


SHARES = st.tuples(st.floats(0, 0.4), st.floats(0, 0.4)) | st.floats(0, 1).map(lambda val: (val, 1 - val))


@given(st.sets(st.text(max_size=4), max_size=40), SHARES, st.randoms(use_true_random=False))
def test_deal(logs: set[str], shares: tuple[float, float], random: Any) -> None:
    """Also if all logs are held out."""
    order, (val, test) = list(logs), shares
    try:
        parts = deal(order, val, test)
    except InputError:
        assert len(logs) < (5 if val + test < 0.9 else 2)
        return
    assert sorted(log for part in parts.values() for log in part) == sorted(logs)
    assert bool(parts["train"]) == (val + test < 0.9)
    assert bool(parts["val"]) == bool(val)
    assert bool(parts["test"]) == bool(test)
    assert abs(len(parts["test"]) - test * len(logs)) <= 1
    if parts["train"]:  # a held-out split does not depend on the other's size
        assert deal(order, 0, test)["test"] == parts["test"]
        assert deal(order, val, 0)["val"] == parts["val"]
    random.shuffle(order)
    assert deal(order, val, test) == parts


def test_files_of_a_log_stay_together(tmp_path: Path) -> None:
    for i in range(12):
        write(tmp_path / "some" / str(i % 2), f"scene{i}", log=f"log{i // 3}")
    parts = names(SceneFiles(tmp_path, val_share=0.25, test_share=0.25))
    assert [len(part) for part in parts] == [6, 3, 3]
    logs = [{int(name.removeprefix("scene")) // 3 for name in part} for part in parts]
    assert sum(map(len, logs)) == len(set.union(*logs)) == 4


def test_files_without_a_log_are_split_one_by_one_wherever_the_folder_is(tmp_path: Path) -> None:
    for folder in ("here", "there"):
        for i in range(10):
            write(tmp_path / folder, f"scene{i}")
    here, there = (names(SceneFiles(tmp_path / folder)) for folder in ("here", "there"))
    assert here == there
    assert [len(part) for part in here] == [8, 1, 1]


@given(st.sets(st.text(max_size=4), max_size=40), st.floats(0.01, 0.99), st.data())
def test_parts_of_training_share_no_log(logs: set[str], cut: float, data: Any) -> None:
    first, second = in_part(sorted(logs), (0.0, cut)), in_part(sorted(logs), (cut, 1.0))
    assert sorted(first + second) == sorted(logs)
    # Also if each is chosen where some logs are missing.
    some = data.draw(st.sets(st.sampled_from(sorted(logs)))) if logs else set()
    assert set(in_part(some, (0.0, cut))) == set(first) & some


def test_training_takes_its_part_and_the_held_out_logs_stay(tmp_path: Path) -> None:
    for i in range(20):
        write(tmp_path, f"scene{i}", log=f"log{i}")
    parts = (0.0, 1.0), (0.0, 0.5), (0.5, 1.0)
    whole, first, second = (names(SceneFiles(tmp_path, train_part=part)) for part in parts)
    assert first[1:] == second[1:] == whole[1:]
    assert first[0] and second[0]
    assert sorted(first[0] + second[0]) == sorted(whole[0])
    with pytest.raises(InputError, match="train_part"):
        SceneFiles(tmp_path, train_part=(0.5, 0.5))
    with pytest.raises(InputError, match="together at most 1"):
        SceneFiles(tmp_path, val_share=0.5, test_share=0.6)
