"""Driving scenes as prompts, demonstrations, and the whole way from images to signals with a tiny model."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from driving_scenes.errors import InputError
from driving_scenes.files import SceneFiles
from driving_scenes.generator import GeneratedScenes
from driving_scenes.scene_file import write_scene
from lightning_cgrpo import Constraint, GenerationSampler, Objective, VisionLanguagePolicy
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.datamodules import NavsimDataModule
from lightning_cgrpo.run.looks import Used
from lightning_cgrpo.tasks.driving.answers import AnswerFormat
from lightning_cgrpo.tasks.driving.prompts import PromptFormat
from lightning_cgrpo.tasks.driving.scene_prompts import DrivingDemonstrations
from lightning_cgrpo.tasks.driving.task import DrivingTask
from navsim_score.columns import EXTENDED_COMFORT
from navsim_score.evaluation import constant_velocity
from navsim_score.expert.pdm_closed import plan
from tests.answered import answered
from tests.driving_scenes.scenes import straight_road
from tests.policies.tiny_vision import make_tiny_vision_model

SMALL = PromptFormat(frames=1, cameras=("CAM_F0",), height=32, width=64, system=False)
COUNTS = {"train_prompts": 6, "val_prompts": 3, "test_prompts": 4}


def names(batches):
    return [scene.name for batch in batches for scene in batch.columns["scene"]]


def test_batches_have_prompts_and_scenes():
    data = NavsimDataModule(2, form=SMALL, eval_prompts=3, **COUNTS)
    data.setup("fit")
    loader = data.train_dataloader()
    assert len(loader) == 3
    assert [len(data.val_dataloader()), len(data.test_dataloader()), len(data.predict_dataloader())] == [1, 2, 2]
    batch = next(iter(loader))
    assert batch.columns.keys() == {"prompt", "scene", "plan"}
    for prompt, scene in zip(batch.columns["prompt"], batch.columns["scene"], strict=True):
        assert [part["type"] for part in prompt[0]["content"]] == ["text", "image", "text"]
        assert scene.name.startswith("generated_train")
    assert len({*names(loader), *names(data.val_dataloader()), *names(data.test_dataloader())}) == 13
    again = NavsimDataModule(2, form=SMALL, **COUNTS)
    assert names([next(iter(again.train_dataloader()))]) == names([batch])


def test_follow_ups_are_a_dataloader_by_themselves():
    source = GeneratedScenes(0, 30, follow_ups=2)
    data = NavsimDataModule(1, source, SMALL, 4, test_prompts=3, eval_prompts=2, test_train_prompts=1, follow_ups=True)
    loaders = data.test_dataloader()
    assert list(loaders) == ["test", "test_train", "test_follow_ups"]
    first = [scene for batch in loaders["test"] for scene in batch.columns["scene"]]
    batches = list(loaders["test_follow_ups"])
    after = [scene for batch in batches for scene in batch.columns["scene"]]
    follows = [number for batch in batches for number in batch.columns["follows"]]
    assert follows == [0, 0, 1, 1, 2, 2]
    assert [scene.log for scene in after] == [first[number].log for number in follows]
    assert [scene.name for scene in after[2:4]] == [scene.name for scene in source.follow_ups("test")[10]]
    assert all(batch.columns["prompt"] for batch in batches)
    data = NavsimDataModule(1, GeneratedScenes(0, 30, follow_ups=0), SMALL, 4, test_prompts=3, follow_ups=True)
    assert len(data.test_dataloader()) == 1  # the only one


def test_follow_ups_and_pairs_of_frames_in_training():
    source = GeneratedScenes(0, follow_ups=2)
    mixed = NavsimDataModule(2, source, SMALL, 8, 3, 4, train_follow_ups=0.5, worker=False)
    found = names(mixed.train_dataloader())
    assert len(found) == 8 and 2 <= sum("_after_" in name for name in found) <= 4
    assert sum("_after_" in name for name in names(mixed.val_dataloader())) == 1
    first = NavsimDataModule(2, source, SMALL, 8, 3, 4, train_follow_ups=0.5, val_follow_ups=0.0, worker=False)
    assert not any("_after_" in name for name in names(first.val_dataloader()))
    assert first.source("train").share == 0.5
    with pytest.raises(UserError, match="`val_follow_ups` to be in"):
        NavsimDataModule(2, source, SMALL, val_follow_ups=1.5)
    assert not any("_after_" in name for name in names(mixed.test_dataloader()))
    paired = NavsimDataModule(4, source, SMALL, 8, 4, 4, follow_ups=True, frame_pairs=True, worker=False)
    for batch in (*paired.train_dataloader(), *paired.val_dataloader(), *paired.test_dataloader()):
        first, following = batch.columns["scene"][:2], batch.columns["scene"][2:]
        assert [scene.previous for scene in following] == [scene.name for scene in first]
    with pytest.raises(UserError, match=r"at least 4, a pair of frames for each process, but got 3"):
        alone = NavsimDataModule(3, source, SMALL, 8, 4, 4, frame_pairs=True)
        alone.trainer = SimpleNamespace(world_size=2, lightning_module=None)
        alone.setup("fit")
    with pytest.raises(InputError, match="frame_pairs"):
        NavsimDataModule(2, SceneFiles("."), SMALL, 4, frame_pairs=True).source("train")


def test_evaluations_in_pairs_show_scenes_of_the_whole_split():
    source = GeneratedScenes(0, 6)
    whole = NavsimDataModule(4, source, SMALL, None, None, None, frame_pairs=True, eval_prompts=4, seed=0)
    every = [scene.name for scene in source.scenes("test")]
    shown = names(whole.test_dataloader())
    assert sorted(shown) == sorted([*every, *(f"{name}_next" for name in every)])
    half = NavsimDataModule(4, source, SMALL, None, 4, 4, frame_pairs=True, eval_prompts=4, seed=0)
    assert names(half.test_dataloader()) == [every[0], every[3], f"{every[0]}_next", f"{every[3]}_next"]
    assert len(names(half.val_dataloader())) == 4


def test_a_certificate_shows_each_scene_with_its_next_frame():
    """Batches have two prompts of each scene, which are one sample, and answers of their own."""
    source = GeneratedScenes(0)
    options = {"scenes": source, "form": SMALL, "train_prompts": 8, "val_prompts": 4, "test_prompts": 5, "seed": 0}
    alone, paired = (NavsimDataModule(4, frame_pairs=pairs, eval_prompts=4, **options) for pairs in (False, True))
    expected = alone.certification(3)
    chosen = paired.certification(3)
    assert expected.words == "3 new prompts" and chosen.words == "3 new prompts, each with its next frame"
    assert chosen.new_until == expected.new_until == 8 and len(chosen.source) == 3
    assert [len(batch) for batch in expected.loader(4)] == [3]
    first, last = batches = list(chosen.loader(4))
    assert [len(batch) for batch in batches] == [4, 2], "at most four prompts at once"
    ahead = list(chosen.loader(4, worker=True))
    assert [batch.index.tolist() for batch in ahead] == [batch.index.tolist() for batch in batches]
    assert names(ahead) == names(batches)
    assert first.sample.tolist() == [0, 1, 0, 1] and last.sample.tolist() == [0, 0]
    [same] = expected.loader(4)
    assert [*first.index[:2].tolist(), *last.index[:1].tolist()] == same.index.tolist(), "the same answers"
    numbers = torch.cat([batch.index for batch in batches]).tolist()
    assert len({*numbers}) == 6
    for batch in batches:
        now, following = batch.columns["scene"][: len(batch) // 2], batch.columns["scene"][len(batch) // 2 :]
        assert [scene.previous for scene in following] == [scene.name for scene in now]
        assert len(batch.columns["prompt"]) == len(batch.columns["plan"]) == len(batch)


def test_looks_at_generated_scenes_never_repeat_a_scene():
    """Each look draws new ones after those before, whatever the number of test prompts is."""
    data = NavsimDataModule(4, GeneratedScenes(0), SMALL, 8, 4, 5, eval_prompts=4, seed=0)
    tested = names(data.test_dataloader())
    first = data.certification(3)
    fewer = NavsimDataModule(4, GeneratedScenes(0), SMALL, 8, 4, 2, eval_prompts=4, seed=0)
    second = fewer.certification(4, Used(new_until=first.new_until))
    shown = [name for look in (first, second) for name in names(look.loader(4))]
    assert len({*tested, *shown}) == 5 + 3 + 4
    other = NavsimDataModule(4, GeneratedScenes(1), SMALL, 8, 4, 5, eval_prompts=4, seed=0)
    assert data.stream() == fewer.stream() != other.stream()  # so the register knows scenes again
    finite = NavsimDataModule(4, GeneratedScenes(0, 5), SMALL, None, None, None, eval_prompts=4, seed=0)
    assert finite.certification(3).words == "3 of 5 test prompts"


def test_a_scene_without_a_next_frame_is_certified_without_its_comfort(monkeypatch):
    source = GeneratedScenes(0, 3)
    following = source.next_frames("test")
    monkeypatch.setattr(source, "next_frames", lambda split: [following[0], None, following[2]])
    data = NavsimDataModule(4, source, SMALL, None, None, None, frame_pairs=True, eval_prompts=6, seed=0)
    [batch] = data.certification(None).loader(6)
    assert names([batch])[4] == names([batch])[1]
    drives = answered([["[5.0,0.0], [10.0,0.0], [15.0,0.0], [20.0,0.0]"]] * 6)
    comfort = DrivingTask().score(batch, drives)[EXTENDED_COMFORT]
    assert comfort.applicable.flatten().tolist() == [True, False, True] * 2


def test_a_frame_that_is_the_next_of_one_scene_and_a_scene_itself_is_compared_within_pairs(monkeypatch):
    """Neighboring frames, as of a log: each scene's comfort is that of its own pair."""
    source = GeneratedScenes(1, 2)
    first, second = source.scenes("test")[0], source.next_frames("test")[0]
    third = dataclasses.replace(second, name="third", previous=second.name)
    monkeypatch.setattr(source, "scenes", lambda split: [first, second])
    monkeypatch.setattr(source, "next_frames", lambda split: [second, third])
    data = NavsimDataModule(4, source, SMALL, None, None, None, frame_pairs=True, eval_prompts=4, seed=0)
    [batch] = data.test_dataloader()
    assert names([batch]) == [first.name, second.name, second.name, "third"]
    held, back = constant(first), "[5.0,0.0], [2.0,0.0], [9.0,0.0], [0.0,0.0]"
    texts = [[held], [back], [constant(second)], [held]]

    def scored(prompts, rows):
        return DrivingTask().score(prompts, answered([texts[row] for row in rows]))[EXTENDED_COMFORT]

    comfort = scored(batch, range(4))
    pairs = [scored(chosen(batch, rows), rows).value[0] for rows in ([0, 2], [1, 3])]
    assert comfort.applicable.all() and comfort.value[2:].tolist() == comfort.value[:2].tolist()
    assert comfort.value[:2].tolist() == [pair.tolist() for pair in pairs]
    assert pairs[0] != pairs[1], "the answers tell the pairs apart"


def constant(scene):
    """The answer that holds the scene's velocity."""
    return AnswerFormat().write(constant_velocity([scene])[1][0], 0.5)


def chosen(batch, rows):
    """A pair of a batch."""
    columns = {name: [column[row] for row in rows] for name, column in batch.columns.items()}
    return PromptGroups(batch.index[rows], columns, torch.tensor([0, 0]))


def test_what_is_missing_is_said_at_once(tmp_path):
    with pytest.raises(InputError, match="Expected a scene file or a folder"):
        NavsimDataModule(1, SceneFiles(tmp_path)).setup("fit")
    write_scene(straight_road(), tmp_path / "a.scene.json")
    data = NavsimDataModule(1, SceneFiles(tmp_path, 0, 0))
    data.setup("fit")
    with pytest.raises(UserError, match="Expected scenes in every split that is used, but got none"):
        data.setup("test")
    with pytest.raises(ValueError, match="`val_prompts` to be at least 1, but got 0"):
        NavsimDataModule(1, val_prompts=0)


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_of_scenes_without_end_a_number_is_said(split):
    counts = COUNTS | {f"{split}_prompts": None}
    for scenes in (None, GeneratedScenes(2)):
        with pytest.raises(UserError, match=f"{split}_prompts"):
            NavsimDataModule(1, scenes, **counts)
    data = NavsimDataModule(1, GeneratedScenes(2, 1_000_000 if split == "train" else 5), SMALL, **counts)
    assert len(data.source(split)) == len(data.scenes.scenes(split))


def test_the_worker_makes_the_same_prompts():
    """Images, scenes and plans, which then are not planned again."""
    made = (NavsimDataModule(2, form=SMALL, worker=worker, **COUNTS) for worker in (True, False))
    ahead, at_once = (list(data.train_dataloader()) for data in made)
    assert len(ahead) == len(at_once) == 3
    for ours, theirs in zip(ahead, at_once, strict=True):
        assert torch.equal(ours.index, theirs.index)
        for row in range(2):
            image, same = (groups.columns["prompt"][row][0]["content"][1].pop("image") for groups in (ours, theirs))
            assert image.dtype == same.dtype and (image == same).all()
            assert ours.columns["prompt"][row] == theirs.columns["prompt"][row]
            plans = [groups.columns["plan"][row] for groups in (ours, theirs)]
            assert torch.equal(plans[0].trajectory, plans[1].trajectory)
            assert plans[0].route_lanes == plans[1].route_lanes
            scenes = [groups.columns["scene"][row] for groups in (ours, theirs)]
            assert torch.equal(scenes[0].agents.states, scenes[1].agents.states)
            assert torch.equal(plans[0].trajectory, plan(scenes[:1])[0].trajectory)


def test_demonstrations_of_the_expert_and_of_the_human():
    scenes = GeneratedScenes(4, 5).scenes("train")
    both = (DrivingDemonstrations(scenes, None, SMALL, human) for human in (False, True))
    expert, human = (data.groups(torch.tensor([3, 1])) for data in both)
    for row, number in enumerate((3, 1)):
        trajectory = plan([scenes[number]])[0].trajectory
        points = AnswerFormat().read(expert.columns["completion"][row])
        ego = scenes[number].ego.poses[-1]
        # Distances are the same in every frame.
        away = (trajectory[10::10, :2] - ego[:2]).norm(dim=1)
        torch.testing.assert_close(points.norm(dim=1), away, rtol=0, atol=0.08)
        points = AnswerFormat().read(human.columns["completion"][row])
        torch.testing.assert_close(points, scenes[number].human[1::2, :2], rtol=0, atol=0.0501)


def test_demonstrations_that_cannot_be(tmp_path):
    write_scene(straight_road(scene_type="synthetic", human_trajectory=None), tmp_path / "a.scene.json")
    scenes = SceneFiles(tmp_path, 0, 0).scenes("train")
    with pytest.raises(UserError, match="Expected a human to demonstrate, but scene 'made by hand' has none"):
        DrivingDemonstrations(scenes, None, SMALL, human=True).groups(torch.tensor([0]))
    with pytest.raises(UserError, match="Expected a trajectory of 5 s"):
        DrivingDemonstrations(scenes, None, PromptFormat(answer=AnswerFormat(5))).groups(torch.tensor([0]))


def test_a_demonstrated_answer_drives_well():
    """PDM-Closed, written to a decimeter, violates almost nothing: the parts fit together."""
    source = DrivingDemonstrations(GeneratedScenes(1, 12).scenes("train"), None, SMALL)
    groups = source.groups(torch.arange(12))
    drives = DrivingTask().scored(groups.columns["scene"], [[text] for text in groups.columns["completion"]])
    assert float(torch.cat([drive.scores.epdms for drive in drives]).mean()) > 0.8


TEXTS = ["Intent: go left.\nSpeed: 7.3 m/s.\n0123456789", "[-14.5,0.0], [12.0,0.3]", "front view, t=0.0s"]


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    directory = make_tiny_vision_model(folder, TEXTS, hidden_size=32, layers=1, vision_layers=1)
    policy = VisionLanguagePolicy(str(directory))
    policy.load()
    return policy


def test_from_images_to_signals(policy):
    """A model that knows nothing writes nonsense: everything is malformed, and counted."""
    data = NavsimDataModule(2, form=PromptFormat(frames=2, height=32, width=64), **COUNTS)
    prompts = next(iter(data.train_dataloader()))
    noise = torch.Generator().manual_seed(0)
    rollouts = GenerationSampler(max_new_tokens=8).rollout(
        policy, prompts, 3, lambda *shape: torch.rand(2, *shape, generator=noise, dtype=torch.float64)
    )
    signals = DrivingTask().score(prompts, rollouts)
    assert signals["malformed"].value.tolist() == [[1.0] * 3] * 2
    bounded = ("no_at_fault_collisions", "drivable_area_compliance")
    objective = Objective("wat", dict.fromkeys(bounded, Constraint(at_least=0.99)))
    objective.check_signals(DrivingTask.signals)
    violations, opportunities = objective.violations(signals)
    assert violations.tolist() == opportunities.tolist() == [6.0, 6.0]
    assert torch.equal(objective.components(signals).values[0], torch.zeros(2, 3))
