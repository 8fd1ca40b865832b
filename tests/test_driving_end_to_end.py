"""The main job as a user runs it: every method trains, resumes and is tested in both stages."""

import json
import multiprocessing
import shlex
from pathlib import Path

import pytest
import torch

from driving_scenes.generator import GeneratedScenes
from lightning_cgrpo import load
from lightning_cgrpo.__main__ import main
from lightning_cgrpo.cli.study.study import read_study
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.prompts.source import COMPANION
from lightning_cgrpo.core.randomness import Stream
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.datamodules import NavsimDataModule
from lightning_cgrpo.modules.rollout_module import TEST_SPLITS
from lightning_cgrpo.run.looks import looks_in
from lightning_cgrpo.run.register import Register
from lightning_cgrpo.tasks.completions import texts
from lightning_cgrpo.tasks.driving.prompts import PromptFormat, messages
from navsim_score.scoring.comfort import extended_comfort

ROOT = Path(__file__).parents[1]
SMALL = (
    "-c configs/navsim.yaml --data.prompts_per_update=2 --data.train_prompts=8 --data.val_prompts=2 "
    "--data.test_prompts=3 --model.group_size=4 --model.eval_group_size=2 --callbacks.initial_rates.batches=1 "
    "--callbacks.progress=null --trainer.enable_progress_bar=false --trainer.enable_model_summary=false"
)
SMALL_FORM = PromptFormat(frames=1, height=64, width=64, system=False)
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
def test_a_certificate_of_pairs_of_frames(folder, capsys):
    """One answer to each scene and to its next frame; a loop over the pairs counts the scenes' answers."""
    declared = "-c configs/ablations/navsim/keep_progress.yaml --trainer.max_steps=1 --data.test_prompts=24"
    command("fit", declared, "--trainer.limit_val_batches=0")
    loose = " ".join(f"--model.objective.constraints.{n}.at_least=0.5" for n in ("NC", "DAC", "DDC"))
    (last,) = folder.glob("runs/*/version_0/checkpoints/last.ckpt")
    capsys.readouterr()
    with pytest.raises(SystemExit):  # some verdict is undecided
        command("certify", declared, "--trainer.limit_val_batches=0", loose, f"--ckpt_path={last} --prompts=20")
    printed = " ".join(capsys.readouterr().out.split())
    assert "20 new prompts, each with its next frame, one answer to each;" in printed
    (look,) = looks_in(Register(folder).entries())
    assert look["prompts"] == 20 and (look["shown"]["first"], look["shown"]["until"]) == (24, 44)

    module, source = load(last), GeneratedScenes(1)
    data = NavsimDataModule(scenes=source, form=SMALL_FORM, test_prompts=24)
    scenes, following = source.scenes("test"), source.next_frames("test")
    chosen = [*data.certification(20).source.index]
    comforts, collisions, progress = [], [], []
    for number in chosen:
        assert number >= 24
        place = len(scenes) + number  # new scenes, after those over which the test's are spaced
        drives = []
        for scene, index in ((scenes[place], number), (following[place], number + COMPANION)):
            prompts = PromptGroups(torch.tensor([index]), {"prompt": [messages(scene, SMALL_FORM)]})
            rollouts = module.sample(prompts, 1, Stream.TEST, TEST_SPLITS.index("certify"))
            drives += module.task.scored([scene], texts(rollouts))
        columns = drives[0].scores.columns
        comforts.append(float(extended_comfort(drives[1].scores.states, drives[0].scores.states)))
        collisions.append(float(columns["no_at_fault_collisions"] == 1))
        progress.append(float(columns["ego_progress"]))
    found = {name: of["rate"] for name, of in look["constraints"].items()}
    assert found["EC"] == pytest.approx(sum(comforts) / 20)
    assert found["NC"] == pytest.approx(sum(collisions) / 20)
    assert found["progress"] == pytest.approx(sum(progress) / 20)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(folder, method):
    short = "--trainer.max_steps=1 --trainer.limit_val_batches=0 --callbacks.drives=null"
    command("fit", f"-c configs/ablations/navsim/{method}.yaml", short)
    assert len(list(folder.glob("runs/*/version_0/checkpoints/last.ckpt"))) == 1


def test_prompts_ask_for_what_the_task_reads(folder):
    with pytest.raises(UserError, match="try the same in both"):
        command("fit", "--data.form.answer.waypoints=3 --trainer.max_steps=1")
