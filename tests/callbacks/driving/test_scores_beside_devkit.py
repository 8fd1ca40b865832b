"""A test on a split of one stage beside the devkit's own script, where the devkit is installed."""

import json

import pytest
import torch

pytest.importorskip("navsim", reason="NAVSIM's devkit isn't installed")
pytest.importorskip("hydra", reason="The devkit's requirements aren't installed")

from driving_scenes.devkit import NavsimDevkit, source
from driving_scenes.devkit.installation import OfficialSplit
from lightning_cgrpo import Constraint, Objective
from lightning_cgrpo.callbacks import DrivingScores
from lightning_cgrpo.core.prompts.source import PromptLoader
from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.tasks.driving.scene_prompts import ScenePrompts
from lightning_cgrpo.tasks.driving.task import DrivingTask
from navsim_score.columns import SHORT
from navsim_score.traffic.log_replay import LogReplay
from tests.callbacks.driving.test_scores import SMALL, Nobody, Straight
from tests.navsim_score.test_devkit_itself import BEFORE, LOG, NOW, SPLIT, run  # noqa: F401 (a fixture)
from tests.quiet import quiet_trainer

AGENTS = {"constant_velocity_agent": "constant velocity", "human_agent": "human"}


@pytest.mark.slow
def test_one_stage_has_the_numbers_of_the_devkits_script(run, tmp_path, monkeypatch):  # noqa: F811
    """Every column, with EC of the pair of frames that the log has; of the drivers that both programs have.

    Not in reactive traffic, in which the devkit fails on this drive ("Agent's baseline does not intersect the agent").
    """
    whole = "++train_test_split.scene_filter.include_synthetic_scenes=false"
    official = {}
    for agent, name in AGENTS.items():
        official[name] = run("run_pdm_score_one_stage", whole, f"agent={agent}")
        for table in (tmp_path / "out").glob("*.csv"):
            table.unlink()
    chosen = {"num_future_frames": 8, "frame_interval": 1, "log_names": [LOG], "tokens": [NOW, BEFORE]}
    monkeypatch.setattr(source, "read_split", lambda name: OfficialSplit(name, "test", chosen, []))
    scenes = NavsimDevkit(SPLIT, None, 0.0, allow_pickles=True).scenes("train")
    scores = DrivingScores(path=str(tmp_path / "scores.json"), traffic=LogReplay(), dialect="epdms_valid")
    trainer = quiet_trainer(scores, default_root_dir=tmp_path)
    objective = Objective("wat", {"malformed": Constraint(at_most=0.1, role="monitor")})
    module = RolloutModule(Nobody(), Straight(), DrivingTask(), objective, torch.optim.Adam, None, 1, 0)
    trainer.test(module, PromptLoader(ScenePrompts(scenes, None, SMALL), 2), verbose=False)
    drivers = json.loads((tmp_path / "scores.json").read_text())["drivers"]
    for name, rows in official.items():
        mean, ours = rows["average_all_frames"], drivers[name]["stage_one"]
        assert ours["EC"] is not None and ours["scenes"] == 2
        for short in ("NC", "DAC", "DDC", "TLC", "EP", "TTC", "LK", "HC", "EC", "EPDMS"):
            (key,) = ["score"] if short == "EPDMS" else [key for key in mean if key.startswith(SHORT[short])]
            assert ours[short] == pytest.approx(float(mean[key]), abs=1e-6), (name, short)
