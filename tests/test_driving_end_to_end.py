"""The main job as a user runs it: every method trains, resumes and is tested in both stages."""

import json
import multiprocessing
import shlex
from pathlib import Path

import pytest
import torch

from lightning_cgrpo.__main__ import main
from lightning_cgrpo.cli.study.study import read_study
from lightning_cgrpo.core.errors import UserError

ROOT = Path(__file__).parents[1]
SMALL = (
    "-c configs/navsim.yaml --data.prompts_per_update=2 --data.train_prompts=8 --data.val_prompts=2 "
    "--data.test_prompts=3 --model.group_size=4 --model.eval_group_size=2 --callbacks.initial_rates.batches=1 "
    "--callbacks.progress=null --trainer.enable_progress_bar=false --trainer.enable_model_summary=false"
)
STUDY = read_study(str(ROOT / "configs/studies/navsim.yaml"))
METHODS = [file.stem for file in sorted((ROOT / "configs/ablations/navsim").glob("*.yaml"))]


def command(name, *more):
    main([name, *shlex.split(" ".join((SMALL, *more)))])


@pytest.mark.slow
def test_the_main_job(folder):
    before = set(multiprocessing.active_children())  # Other tests of this process may have left some to the collector.
    command("fit", "--trainer.max_steps=2 --callbacks.drives.every_n_updates=1")
    command("fit", "--trainer.max_steps=3 --ckpt_path=last")
    command("test", "--ckpt_path=last")
    (run,) = folder.glob("runs/navsim,*/version_1")
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 3
    command("fit", "--trainer.max_steps=3 --callbacks.drives.every_n_updates=1 --trainer.logger.save_dir=whole")
    (whole,) = folder.glob("whole/navsim,*/version_0")
    never_stopped = torch.load(whole / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(weight, never_stopped[name]) for name, weight in checkpoint["state_dict"].items())
    assert set(multiprocessing.active_children()) <= before
    drivers = json.loads((run / "scores.json").read_text())["drivers"]
    assert list(drivers) == ["policy", "PDM-Closed", "constant velocity", "human"]
    policy = drivers["policy"]
    assert (policy["stage_one"]["scenes"], policy["stage_one"]["answers"]) == (3, 6)
    assert policy["stage_two"]["scenes"] <= 6 and 0 <= policy["both"]["EPDMS"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(folder, method):
    command(
        "fit",
        f"-c configs/ablations/navsim/{method}.yaml",
        "--trainer.max_steps=1 --trainer.limit_val_batches=0 --callbacks.drives=null",
    )
    assert len(list(folder.glob("runs/*/version_0/checkpoints/last.ckpt"))) == 1


def test_prompts_ask_for_what_the_task_reads(folder):
    with pytest.raises(UserError, match="try the same in both"):
        command("fit", "--data.form.answer.waypoints=3 --trainer.max_steps=1")
