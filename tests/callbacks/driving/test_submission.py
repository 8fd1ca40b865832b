"""A planner's first plans become a submission, also on scenes without end."""

from types import SimpleNamespace

import torch

from driving_scenes.generator import GeneratedScenes
from lightning_cgrpo.callbacks import WriteSubmission
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts
from lightning_cgrpo.tasks.driving.trajectory_task import TrajectoryTask
from navsim_score.command.submission import Authors, read_submission


def test_a_planners_plans_are_submitted_and_one_that_teleports_is_told(tmp_path, capsys):
    source = GeneratedScenes(0)
    scenes = [source.scenes("test")[number] for number in range(3)]
    poses = torch.zeros(3, 2, 16, 3)
    poses[:, 0, :, 0] = 1.25 * torch.arange(1, 17)  # the second plan of each scene stands still
    poses[1, 0, 8:, 0] += 300
    mask = torch.ones(3, 2, 5, dtype=torch.bool)
    rollouts = Rollouts(mask.long(), mask, {}, info={"poses": poses})
    callback = WriteSubmission(Authors("a", "b", "c", "d", "e"), str(tmp_path / "submission.pkl"))
    outputs = {"rollouts": rollouts, "prompts": PromptGroups(torch.arange(3), {"scene": scenes})}
    trainer = SimpleNamespace(datamodule=SimpleNamespace(scenes=source))
    callback.on_predict_batch_end(trainer, SimpleNamespace(task=TrajectoryTask()), outputs, None, 0)
    callback.on_predict_end(trainer, None)
    assert "Wrote 3 trajectories" in (told := capsys.readouterr().out) and "; 1 are no drive of a car" in told
    submitted = read_submission(tmp_path / "submission.pkl")
    assert submitted.keys() == {scene.name for scene in scenes}
    [plan] = submitted[scenes[0].name]
    assert plan.poses[:, 0].tolist() == [2.5 * step for step in range(1, 9)]
