"""Scores of a test: of the policy's answers and of others, in both stages, on the screen and as JSON."""

import json

import pytest
import torch

from driving_scenes.generator import GeneratedScenes
from lightning_cgrpo import Constraint, Objective
from lightning_cgrpo.callbacks import DrivingScores, EvaluationTable
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.datamodules import NavsimDataModule
from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.policies.policy import Policy
from lightning_cgrpo.samplers.sampler import Sampler
from lightning_cgrpo.tasks.driving.answers import POSE_INTERVAL, AnswerFormat
from lightning_cgrpo.tasks.driving.prompts import PromptFormat
from lightning_cgrpo.tasks.driving.task import DrivingTask
from navsim_score.dialects import DIALECTS
from navsim_score.evaluation import BASELINES, constant_velocity, evaluate
from navsim_score.traffic.log_replay import LogReplay
from tests.quiet import quiet_trainer

SMALL = PromptFormat(frames=1, cameras=("CAM_F0",), height=16, width=32, system=False)
SOURCE = GeneratedScenes(1, 3, follow_ups=2)


class Nobody(Policy):
    """Knows nothing; the sampler answers."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def examples(self, rollouts):
        raise NotImplementedError

    def forward(self, examples):
        raise NotImplementedError


def straight(scenes):
    return [AnswerFormat().write(constant_velocity([scene])[1][0], 0.5) for scene in scenes]


def written(scenes, plans):
    """The planner that `straight` writes down."""
    texts = [AnswerFormat().read(text) for text in straight(scenes)]
    return list(range(len(scenes))), AnswerFormat().poses(torch.stack(texts)), POSE_INTERVAL


class Straight(Sampler):
    """Each prompt's first answer drives straight on; the others say nothing."""

    def rollout(self, policy, prompts, group_size, noise):
        texts = [[text, *["?"] * (group_size - 1)] for text in straight(prompts.columns["scene"])]
        mask = torch.ones(len(texts), group_size, 1, dtype=torch.bool)
        info = {"text": texts, "truncated": torch.zeros(len(texts), group_size, dtype=torch.bool)}
        return Rollouts(mask.long(), mask, {}, info=info)


def evaluated(callback, group=1, follow_ups=True, **data):
    module = run("test", callback, group, {"test_prompts": None, "eval_prompts": 2} | data, follow_ups)[0]
    return module, json.loads(callback.path.read_text())["drivers"]


def run(command, callback, group, data, follow_ups=False):
    objective = Objective("wat", {"malformed": Constraint(at_most=0.1, role="monitor")})
    module = RolloutModule(Nobody(), Straight(), DrivingTask(), objective, torch.optim.Adam, None, group, 0)
    trainer = quiet_trainer(callback, EvaluationTable(), limit_val_batches=None)
    getattr(trainer, command)(module, NavsimDataModule(1, SOURCE, SMALL, follow_ups=follow_ups, **data), verbose=False)
    return module, trainer.callback_metrics


@pytest.mark.slow
def test_both_stages(tmp_path, capsys):
    module, found = evaluated(DrivingScores(path=str(tmp_path / "new" / "scores.json")))

    after = [list(group) for group in SOURCE.follow_ups("test")]
    expected = evaluate(list(SOURCE.scenes("test")), after, {"policy": written})["policy"]
    policy = found["policy"]
    for stage, count, of in (("stage_one", 3, expected.first), ("stage_two", 6, expected.second)):
        assert policy[stage] == pytest.approx({"scenes": count, "answers": count, "malformed": 0.0, **of.columns})
    assert policy["both"] == pytest.approx({"scenes": 3, "EPDMS": expected.epdms})
    assert list(found) == ["policy", "PDM-Closed", "constant velocity", "human"]
    by_scene = json.loads((tmp_path / "new" / "scores.json").read_text())["scenes"]["policy"]
    assert list(by_scene) == [scene.name for scene in SOURCE.scenes("test")]
    first, both = zip(*by_scene.values(), strict=True)
    assert sum(first) / 3 == pytest.approx(policy["stage_one"]["EPDMS"])
    assert sum(both) / 3 == pytest.approx(policy["both"]["EPDMS"])
    assert found["human"]["stage_two"] is None
    # Rates of the objective are those of each set of scenes.
    # Follow-ups of a scene are one sample with it, so that six of three scenes count three times.
    follow_ups = module.evaluations["test_follow_ups"]
    assert module.evaluations["test"].prompts == follow_ups.prompts == follow_ups.repeats == 3
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    name = next(number for number, line in enumerate(lines) if line[0] == "policy:")
    assert lines[name][1:] == ["3", "scenes,", "6", "follow-ups", "of", "3;", "malformed", "0.000,", "0.000"]
    first_stage = [expected.first.columns[column] for column in ("NC", "EPDMS", "ADE@4s")]
    row = lines[name + 1]
    assert [row[0], row[1], *row[-2:]] == ["S1", *(f"{value:.3f}" for value in first_stage)]
    assert lines[name + 3] == ["both", f"{expected.epdms:.3f}"]


def test_malformed_answers_are_zeros_and_training_scenes_do_not_count(tmp_path):
    path = str(tmp_path / "scores.json")
    one = evaluated(DrivingScores(references=False, path=path), follow_ups=False)[1]["policy"]["stage_one"]
    data = {"test_train_prompts": 2, "train_prompts": 4}
    module, found = evaluated(DrivingScores(references=False, path=path), 4, False, **data)
    assert list(found) == ["policy"]
    four = found["policy"]["stage_one"]
    assert (four["scenes"], four["answers"], four["malformed"]) == (3, 12, 0.75)
    assert four["EPDMS"] == pytest.approx(one["EPDMS"] / 4)
    assert four["TLC"] == pytest.approx(one["TLC"] / 4)
    assert four["ADE@4s"] == pytest.approx(one["ADE@4s"])
    assert found["policy"]["both"] is None
    assert module.evaluations.keys() == {"test", "test_train"}


def test_pairs_of_frames_have_extended_comfort(tmp_path):
    pairs = {"test_prompts": 2, "frame_pairs": True}
    scores = evaluated(DrivingScores(False, str(tmp_path / "scores.json")), 1, **pairs)[1]["policy"]
    assert scores["stage_one"]["scenes"] == 2 and scores["stage_two"] is None
    assert scores["stage_one"]["EC"] == 1  # both drive straight on


@pytest.mark.parametrize(("key", "columns"), [("epdms_valid", {"LK", "EPDMS"}), ("pdms", {"EP", "EPDMS"})])
def test_another_dialect_in_log_replay(tmp_path, key, columns):
    """As the devkit's script for one stage; the reference drivers too."""
    path = str(tmp_path / "scores.json")
    found = evaluated(DrivingScores(path=path, traffic=LogReplay(), dialect=key), 2, False)[1]
    expected = evaluate(list(SOURCE.scenes("test")), (), {"policy": written, **BASELINES}, LogReplay(), DIALECTS[key])
    for name, driver in found.items():
        stage = driver["stage_one"]
        share = 2 if name == "policy" and not DIALECTS[key].drops_failed else 1  # its second answers are malformed
        for column in columns:
            assert stage[column] == pytest.approx(expected[name].first.columns[column] / share), (name, column)
    assert (found["policy"]["stage_one"]["DDC"] is None) == (key == "pdms")


def test_an_unknown_dialect_is_refused():
    with pytest.raises(UserError, match="epdms_valid"):
        DrivingScores(dialect="EPDMS")


@pytest.mark.slow
def test_a_validation_has_the_score_of_all_answers(tmp_path):
    metrics = run("validate", DrivingScores(), 4, {"val_prompts": 3, "eval_prompts": 2})[1]
    expected = evaluate(list(SOURCE.scenes("val")), planners={"policy": written})["policy"].first.columns["EPDMS"]
    assert float(metrics["val/epdms"]) == pytest.approx(expected / 4) != 0


@pytest.mark.slow
def test_processes_put_their_drives_together(tmp_path, monkeypatch):
    """Each has a part of the prompts; the first one writes what a single process would."""
    whole = evaluated(DrivingScores(references=False, path=str(tmp_path / "a.json")))[1]
    parts = []

    def share(rank):
        callback = DrivingScores(references=False, path=str(tmp_path / "b.json"))
        monkeypatch.setattr("lightning_cgrpo.core.prompts.source.world", lambda: (rank, 2))
        on_first = "lightning_cgrpo.callbacks.driving.scores.gather_objects_on_first"
        monkeypatch.setattr(on_first, lambda value: parts.append(value) or parts)
        return evaluated(callback)[1]

    share(1)
    together = share(0)["policy"]
    for part in ("stage_one", "stage_two", "both"):
        assert together[part] == pytest.approx(whole["policy"][part])
