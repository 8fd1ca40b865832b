"""NAVSIM's own data through its devkit: on fakes of its classes here, and on the devkit itself where it is installed.

made_up_drive.py is written as an OpenScene log and a nuPlan map, from which the source must make its scene.
"""

import pickle
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.trainer.states import TrainerFn

from driving_scenes.devkit import NavsimDevkit, indexing
from driving_scenes.devkit.convert import plan_content
from driving_scenes.errors import InputError
from driving_scenes.json_fields import SceneError
from driving_scenes.scene_file import read_scene, scene_from_json, scene_to_json
from lightning_cgrpo.callbacks import WriteSubmission
from lightning_cgrpo.datamodules import NavsimDataModule
from lightning_cgrpo.tasks.driving.prompts import PromptFormat
from lightning_cgrpo.tasks.driving.task import DrivingTask
from navsim_score.__main__ import main as run
from navsim_score.columns import EXTENDED_COMFORT, MULTIPLIERS
from navsim_score.command.submission import Authors, read_submission
from tests.answered import answered
from tests.driving_scenes.devkit_files import (
    set_variables,
    write_caches,
    write_image,
    write_log,
    write_maps,
    write_split,
)
from tests.driving_scenes.fake_devkit import FakeScenario, install
from tests.driving_scenes.made_up_drive import LOGS, TOWN, expected, frames, synthetic

FOLLOW_UP, BEFORE_IT = "1234567890abcdefg", "1234567890abcdefh"
CAMERAS = ("CAM_F0", "CAM_L0")
FORM = PromptFormat(frames=1, cameras=(), system=False)
DRIVE = "[5.0,0.0], [10.0,0.0], [15.0,0.0], [20.0,0.0]"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two training logs, one test log with a synthetic scene, and the variables that lead to them."""
    for log, split in zip(LOGS, ("trainval", "trainval", "test"), strict=True):
        write_log(tmp_path, split, log, CAMERAS)
    follow_up = tmp_path / "data" / "two_stage" / "synthetic_scene_pickles" / "s.pkl"
    follow_up.parent.mkdir(parents=True)
    follow_up.write_bytes(pickle.dumps(synthetic("2021.c", FOLLOW_UP, "2021.c-13")))
    for step in range(4):
        write_image(tmp_path / "data" / "two_stage" / "sensor_blobs" / FOLLOW_UP / "cam_f0" / f"{step}.jpg")
    write_maps(tmp_path, TOWN)
    write_caches(tmp_path, ["2021.a-3", "2021.b-3", "2021.c-3"])
    set_variables(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture
def fake(data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The devkit's modules, and its configuration."""
    config = install(monkeypatch, data)
    for name in ("trainval", "test"):
        write_split(config, name, name, None)
    pairs = [["2021.c-3", "2021.c-2", [[FOLLOW_UP, BEFORE_IT]]]]
    write_split(config, "two_stage", "test", ["2021.c"], pairs, include_synthetic_scenes=True)
    return data


def source(**changes: Any) -> NavsimDevkit:
    return NavsimDevkit(**({"train": "trainval", "test": "test", "val_share": 0.0, "allow_pickles": True} | changes))


def assert_same(found: Any, wanted: Any, path: str = "") -> None:
    """But for rounding; the devkit's velocities are float32."""
    if isinstance(wanted, int | float):
        assert found == pytest.approx(wanted, abs=1e-6), path
    elif isinstance(wanted, dict | list):
        assert len(found) == len(wanted), path
        for key in wanted if isinstance(wanted, dict) else range(len(wanted)):
            assert_same(found[key], wanted[key], f"{path}.{key}")
    else:
        assert found == wanted, path


def test_a_log_becomes_the_scene_that_it_was_made_of(fake: Path) -> None:
    scenes = source().scenes("train")
    assert len(scenes) == 2
    for scene, log in zip(scenes, LOGS, strict=False):
        assert_same(scene_to_json(scene), scene_to_json(scene_from_json(expected(log), log)))


def test_splits_share_no_log(fake: Path) -> None:
    assert [scene.log for scene in source().scenes("test")] == ["2021.c"]
    split = source(val_share=0.5)
    logs = [scene.log for name in ("train", "val", "test") for scene in split.scenes(name)]
    assert sorted(logs) == list(LOGS)
    with pytest.raises(InputError, match=r"share 2, such as 2021\.a"):
        source(test="trainval").scenes("train")
    alone = source(test=None, val_share=0.0)
    assert len(alone.scenes("train")) == 2
    assert len(alone.scenes("test")) == 0
    parts = [source(train_part=part).scenes("train") for part in ((0.0, 0.5), (0.5, 1.0))]
    assert sorted(scene.log for part in parts for scene in part) == ["2021.a", "2021.b"]


def test_roads_of_the_route_are_in_the_map_however_far(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeScenario, "near", False)
    assert source().scenes("train")[0].map.roadblocks.ids == ("1", "2")
    monkeypatch.setattr(FakeScenario, "get_route_roadblock_ids", lambda _: ["1", "3"])
    with pytest.raises(SceneError, match=r"2021\.a-3: route: Expected a roadblock of the map, but got '3'"):
        source().scenes("train")[0]


def test_metric_caches_of_navsim_1_are_refused() -> None:
    """Their expert would be another reference of progress."""
    with pytest.raises(InputError, match=r"caches of NAVSIM 2, but got one without `past_human_trajectory`"):
        plan_content(SimpleNamespace(trajectory=None, centerline=None))


def test_metric_caches_hold_the_plan(fake: Path) -> None:
    first, second = source(metric_caches=True).scenes("train")
    assert first.pdm_trajectory is not None
    assert first.centerline is not None
    assert first.pdm_trajectory[:, 0].tolist() == [i / 10 for i in range(41)]
    assert first.centerline.tolist() == [[0, 0], [50, 0]]
    assert second.pdm_trajectory is not None


def test_cameras_are_paths_of_images(fake: Path) -> None:
    [scene] = source(cameras=CAMERAS).scenes("test")
    folder = fake / "data" / "sensor_blobs" / "test" / "2021.c"
    images = {name: [str(folder / name / f"{frame}.jpg") for frame in range(4)] for name in ("F0", "L0")}
    assert scene.cameras == {f"CAM_{name}": paths for name, paths in images.items()}


def test_logs_are_indexed_once(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first process: a later one reads the log of a scene that it builds, and a log that changed."""
    read: list[str] = []

    def load(file: Any, load: Any = pickle.load) -> Any:
        read.append(Path(file.name).name)
        return load(file)

    monkeypatch.setattr(indexing.pickle, "load", load)
    for expected_reads in ([f"{log}.pkl" for log in LOGS], []):
        data = NavsimDataModule(1, source(test="test"), FORM, None, None, None, follow_ups=True)
        data.setup("fit")
        data.setup("test")
        assert len(data.train_dataloader()) == 2
        assert len(data.test_dataloader()) == 1
        assert read == expected_reads
        read.clear()
    assert [source().scenes("train")[row].log for row in (0, 1, 0)] == [*LOGS[:2], LOGS[0]]
    assert sorted(read) == [f"{log}.pkl" for log in LOGS[:2]]
    read.clear()
    write_log(fake, "trainval", "2021.b")
    assert len(source().scenes("train")) == 2
    assert read == ["2021.b.pkl"]


def test_a_test_needs_no_training_data(fake: Path) -> None:
    for log in LOGS[:2]:
        (fake / "data" / "navsim_logs" / "trainval" / f"{log}.pkl").write_bytes(b"")
    data = NavsimDataModule(1, source(), FORM, None, None, None)
    trainer: Any = SimpleNamespace(state=SimpleNamespace(fn=TrainerFn.TESTING))
    data.trainer = trainer
    data.prepare_data()
    trainer.state.fn = TrainerFn.FITTING
    with pytest.raises(InputError, match="0 of 2 logs"):
        data.prepare_data()


def test_a_run_needs_the_data_or_says_that_it_goes_without(fake: Path) -> None:
    images = fake / "data" / "sensor_blobs" / "trainval" / "2021.b" / "F0"
    (images / "1.jpg").unlink()
    with pytest.raises(InputError, match=r"but got 15 of 16 images \(such as .*2021\.b/F0/1\.jpg: missing\)"):
        source(cameras=CAMERAS).scenes("train")
    with pytest.warns(UserWarning, match="1 train scenes of trainval, with 15 of 16 images"):
        assert [scene.log for scene in source(cameras=CAMERAS, partial=True).scenes("train")] == ["2021.a"]
    assert len(source(cameras=CAMERAS, moments=2).scenes("train")) == 2, "the last two frames are whole"
    write_image(images / "1.jpg")
    assert len(source(cameras=CAMERAS).scenes("train")) == 2, "the folder has changed"


@pytest.mark.filterwarnings("ignore:.*train scenes of trainval")
def test_an_image_that_is_mended_in_place_is_found(fake: Path) -> None:
    """As unzip -o writes it, which leaves the folder's time."""
    image = fake / "data" / "sensor_blobs" / "trainval" / "2021.b" / "F0" / "1.jpg"
    whole = image.read_bytes()
    image.write_bytes(whole[: len(whole) // 2])
    assert len(source(cameras=CAMERAS, partial=True).scenes("train")) == 1
    image.write_bytes(whole)
    assert len(source(cameras=CAMERAS, partial=True).scenes("train")) == 2


def test_two_stages(fake: Path) -> None:
    with pytest.warns(UserWarning, match="1 of 2 synthetic scenes"):  # the fake split has one of the pair
        scenes = source(test="two_stage", cameras=["CAM_F0"], partial=True).scenes("test")
    follow_up, *others = scenes
    now = next(scene for scene in others if scene.name == "2021.c-3")
    assert now.previous == "2021.c-2"
    assert now.follow_ups == (follow_up.name,)
    assert follow_up.previous == BEFORE_IT
    assert follow_up.synthetic
    assert follow_up.human is None
    assert follow_up.agents.times[-1] == 2.0  # its future ends there
    assert not follow_up.lights.red[5:].any()
    blobs = fake / "data" / "two_stage" / "sensor_blobs" / FOLLOW_UP / "cam_f0"
    assert follow_up.cameras == {"CAM_F0": [str(blobs / f"{step}.jpg") for step in range(4)]}


def write_dense_and_sparse(config: Path) -> None:
    every = {"num_future_frames": 8, "frame_interval": 1}
    write_split(config, "dense", "test", None, **every)
    write_split(config, "sparse", "test", None, **every, tokens=["2021.c-3", "2021.c-5"])


def test_one_stage_has_the_frames_before(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the devkit's script for one stage pairs them: neighbors in the log's time, unless a frame is missing."""
    write_dense_and_sparse(install(monkeypatch, fake))
    assert [scene.previous for scene in source(test="dense").scenes("test")] == [None, "2021.c-3", "2021.c-4"]
    assert [scene.previous for scene in source(test="sparse").scenes("test")] == [None, None]


def test_the_next_frame_is_that_of_the_log(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a frame that is no scene of the split; unknown at the log's end, after a pause and without its image."""
    write_dense_and_sparse(install(monkeypatch, fake))
    scenes = source(test="dense", cameras=CAMERAS).scenes("test")
    after = source(test="sparse", cameras=CAMERAS).next_frames("test")
    assert len(after) == 2 and after[1] is None
    assert after[0] is not None
    assert_same(scene_to_json(after[0]), scene_to_json(scenes[1]))

    data = NavsimDataModule(4, source(test="sparse"), FORM, None, None, None, frame_pairs=True, eval_prompts=4)
    [batch] = data.test_dataloader()
    assert [scene.name for scene in batch.columns["scene"]] == ["2021.c-3", "2021.c-5", "2021.c-4", "2021.c-5"]
    applicable = DrivingTask().score(batch, answered([[DRIVE]] * 4))[EXTENDED_COMFORT].applicable
    assert applicable is not None and applicable.flatten().tolist() == [True, False] * 2

    log = fake / "data" / "navsim_logs" / "test" / "2021.c.pkl"
    paused = pickle.loads(log.read_bytes())
    for frame in paused[4:]:
        frame["timestamp"] += 500_000
    log.write_bytes(pickle.dumps(paused))
    indexing.unpickled.cache_clear()
    assert source(test="sparse").next_frames("test")[0] is None
    write_log(fake, "test", "2021.c", CAMERAS)
    indexing.unpickled.cache_clear()
    (fake / "data" / "sensor_blobs" / "test" / "2021.c" / "F0" / "4.jpg").unlink()
    sparse = source(test="sparse", cameras=CAMERAS, moments=1, partial=True)
    assert [scene.name for scene in sparse.scenes("test")] == ["2021.c-3", "2021.c-5"]
    assert sparse.next_frames("test")[0] is None


def test_a_split_is_written_as_scene_files(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fake / "scenes"
    arguments = ["scenes", "--split", "trainval", "--out", str(folder)]
    assert run(arguments) == 2 and "pickles" in capsys.readouterr().err
    assert run([*arguments, "--allow-pickles"]) == 0
    scenes = source().scenes("train")
    assert sorted(path.name for path in folder.iterdir()) == ["2021.a-3.scene.json", "2021.b-3.scene.json"]
    for scene in scenes:
        assert_same(scene_to_json(read_scene(folder / f"{scene.name}.scene.json")), scene_to_json(scene))


def test_the_private_test_can_be_answered(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its logs have histories of five frames, without annotations; so have its synthetic scenes."""
    config = install(monkeypatch, fake)
    private = [frame | {"frame_idx": number} for number, frame in enumerate(frames("p")[:5])]
    for frame, key in product(private, ("anns", "traffic_lights", "roadblock_ids")):
        del frame[key]
    later = [frame | {"token": f"{number}".zfill(17), "scene_token": "s"} for number, frame in enumerate(private)]
    for path, content in (
        ("navsim_logs/private_test_hard/private_test_hard.pkl", private[::-1]),
        ("private/openscene_meta_datas/s.pkl", later),
    ):
        (fake / "data" / path).parent.mkdir(parents=True)
        (fake / "data" / path).write_bytes(pickle.dumps(content))
    lists = {"tokens": ["p-3", "p-4"], "reactive_synthetic_initial_tokens": ["3".zfill(17), "4".zfill(17)]}
    write_split(config, "private", "private_test_hard", None, include_synthetic_scenes=True, **lists)
    scenes = source(test="private").scenes("test")
    assert [scene.name for scene in scenes] == ["3".zfill(17), "4".zfill(17), "p-3", "p-4"]
    assert [scene.synthetic for scene in scenes] == [True, True, False, False]
    wanted = scene_from_json(expected("p"), "p")
    assert_same(scenes[2].ego.poses.tolist(), wanted.ego.poses.tolist())
    assert_same(scenes[2].ego.velocities.tolist(), wanted.ego.velocities.tolist())
    assert scenes[2].intent == wanted.intent

    some = {"tokens": ["p-4"], "reactive_synthetic_initial_tokens": ["3".zfill(17)]}
    write_split(config, "private", "private_test_hard", None, include_synthetic_scenes=True, **some)
    assert [scene.name for scene in source(test="private").scenes("test")] == ["3".zfill(17), "p-4"]
    write_split(config, "private", "private_test_hard", None, include_synthetic_scenes=True, **lists)

    data = NavsimDataModule(1, source(test="private"), FORM, None, None, None)
    [batch] = data.predict_dataloader()
    rollouts, task = answered([[DRIVE]] * 3 + [["Straight on."]]), DrivingTask()
    signals = task.score(batch, rollouts)
    assert signals["malformed"].value[:, 0].tolist() == [0, 0, 0, 1]
    assert set(signals) >= set(task.signals)
    assert not any(signals[name].applicable.any() for name in ("wat", "epdms", "ade", *MULTIPLIERS))
    callback = WriteSubmission(Authors("a", "b", "c", "d", "e"), str(fake / "submission.pkl"))
    module: Any = SimpleNamespace(task=task)
    trainer: Any = SimpleNamespace(datamodule=data)
    callback.on_predict_batch_end(trainer, module, {"rollouts": rollouts, "prompts": batch}, batch, 0)
    callback.on_predict_end(trainer, module)
    submitted = read_submission(fake / "submission.pkl")
    assert [len(candidates) for candidates in submitted.values()] == [1] * 4
    plan = submitted["p-3"][0].poses
    assert plan is not None
    assert plan[:, 0].tolist() == pytest.approx([2.5 * step for step in range(1, 9)])
    assert submitted["p-4"][0].poses.count_nonzero() == 0  # type: ignore[union-attr]


def test_errors_say_what_to_install_and_to_set(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="pickles, which can run any code"):
        source(allow_pickles=False).scenes("train")
    with pytest.raises(InputError, match="but got 'navtrain'"):
        source(train="navtrain").scenes("train")
    monkeypatch.delenv("NUPLAN_MAPS_ROOT")
    with pytest.raises(InputError, match="NUPLAN_MAPS_ROOT"):
        source().scenes("train")
    monkeypatch.setitem(sys.modules, "nuplan.common.maps.maps_datatypes", None)
    with pytest.raises(InputError, match="pip install --no-deps"):
        source().scenes("train")
