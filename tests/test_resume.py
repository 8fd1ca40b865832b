"""Kill a run at any moment and resume it: what follows is what would have followed, to the last bit."""

import csv
import shlex
import signal
import time

import pytest
import torch

from benchmarks.run_differences import different
from lightning_cgrpo import Constraint
from lightning_cgrpo.__main__ import main
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.run.checkpoints.plugin import CheckpointFiles
from tests.forked import forked
from tests.grids import grid_module
from tests.memory import steady
from tests.quiet import AVERAGED, quiet_trainer

EVERY = 5
LOGGED = shlex.split(
    "--trainer.log_every_n_steps=1 --trainer.logger=lightning.pytorch.loggers.CSVLogger --trainer.logger.save_dir=runs "
    "--trainer.logger.name=resumed --callbacks.initial_rates.batches=1 --callbacks.layout=null "
    "--callbacks.progress=null --trainer.enable_progress_bar=false --trainer.enable_model_summary=false "
    "--callbacks.checkpoints.save_top_k=-1 --callbacks.checkpoints.monitor=null"
)
# Three updates per pass over the prompts, so passes end between checkpoints; validation inside; a schedule.
GRID = shlex.split(
    "fit -c configs/gridworld.yaml --data.prompts_per_update=4 --data.train_prompts=12 --data.val_prompts=6 "
    "--model.group_size=4 --model.policy.hidden=[32] --model.sampler.environment.max_steps=30 "
    "--model.optimization.minibatch_size=200 --model.optimization.kl_weight=0.01 "
    "--model.lr_scheduler=torch.optim.lr_scheduler.StepLR --model.lr_scheduler.step_size=4 "
    "--model.lr_scheduler.gamma=0.9 --trainer.val_check_interval=4 --callbacks.pictures=null "
    f"--callbacks.checkpoints.every_n_train_steps={EVERY}"
)
RUN = [*GRID, *LOGGED]
# An estimator with a state of its own, the pooled scale.
ARGUMENTS = [*RUN, "--model.estimator=ScalarizedAdvantages", "--model.estimator.scale=pooled"]


def rows(folder, version, first):
    """What was logged from update `first` on, as written, but for how long it took."""
    with (folder / f"runs/resumed/version_{version}/metrics.csv").open() as file:
        logged = [{tag: value for tag, value in steady(row).items() if value} for row in csv.DictReader(file)]
    return [row for row in logged if int(row["step"]) >= first]


def checkpoint(folder, version, step):
    return torch.load(folder / f"runs/resumed/version_{version}/checkpoints/step={step}.ckpt", weights_only=True)


def newest_update(folder, version=0):
    """Updates done in the newest checkpoint, where a run goes on; a kill may come between it and last.ckpt."""
    saved = (folder / f"runs/resumed/version_{version}/checkpoints").glob("*.ckpt")
    return max(torch.load(file, weights_only=True)["global_step"] for file in saved)


def assert_identical(ours, theirs, where=""):
    assert list(different(ours, theirs, where)) == []


def assert_same_state(ours, theirs, updates):
    """Policy, weights, optimizer, schedule, position; and of all callbacks but the one that remembers paths."""
    assert ours["global_step"] == theirs["global_step"] == updates
    for name in ("state_dict", "optimizer_states", "lr_schedulers", "epoch", "estimator"):
        assert_identical(ours[name], theirs[name], name)
    duals = [state["callbacks"]["LagrangianCallback"] for state in (ours, theirs)]
    assert_identical(*duals, "LagrangianCallback")
    assert {"controller", "rates"} <= set(duals[0])
    # Something has happened to all of them.
    numbers = [state for state in duals[0]["controller"].values() if isinstance(state, torch.Tensor)]
    assert len(torch.cat([number.flatten().double() for number in numbers]).unique()) > 1
    assert ours["lr_schedulers"][0]["last_epoch"] == updates


def resumed_from_the_middle(folder, *arguments):
    """The checkpoint of update 5 of 10, from which a run has been found to go on as the whole one."""
    main([*arguments, "--trainer.max_steps=10"])
    main([*arguments, "--trainer.max_steps=10", f"--ckpt_path=runs/resumed/version_0/checkpoints/step={EVERY}.ckpt"])
    assert rows(folder, 1, 0) == rows(folder, 0, EVERY)
    assert_same_state(checkpoint(folder, 1, 10), checkpoint(folder, 0, 10), 10)
    return checkpoint(folder, 0, EVERY)


def killed_and_resumed(arguments, saved, more, tmp_path, monkeypatch):
    """The whole run's rows, after a run that was killed once it had `saved` has been found to go on as that one.

    SIGKILL ends a process; this one, which knows no more, goes on with --ckpt_path=last. Equal are all metrics after
    the checkpoint as strings of a CSV file, validation's included, and the whole state `more` updates later.
    """
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed.mkdir()
    whole.mkdir()
    saved = killed / "runs/resumed/version_0/checkpoints" / saved
    monkeypatch.chdir(killed)
    output = tmp_path / "output.txt"
    with forked(main, [*arguments, "--trainer.max_steps=1000000"], output=output) as process:
        deadline = time.monotonic() + 240
        while not saved.is_file() and process.exitcode is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL, output.read_text()
    resumed_at = newest_update(killed)
    updates = resumed_at + more
    main([*arguments, "--ckpt_path=last", f"--trainer.max_steps={updates}"])
    monkeypatch.chdir(whole)
    main([*arguments, f"--trainer.max_steps={updates}"])
    # A checkpoint from just before a validation resumes with the validation, which belongs to the update before.
    resumed, expected = rows(killed, 1, resumed_at), rows(whole, 0, resumed_at)
    assert resumed == expected
    assert {int(row["step"]) for row in expected} == set(range(resumed_at, updates))
    assert_same_state(checkpoint(killed, 1, updates), checkpoint(whole, 0, updates), updates)
    return expected


def test_killed_and_resumed_equals_uninterrupted(tmp_path, monkeypatch):
    expected = killed_and_resumed(ARGUMENTS, "last.ckpt", 2 * EVERY, tmp_path, monkeypatch)
    assert sum("val/rate/lava" in row for row in expected) >= 2
    assert len({row["rate/lava"] for row in expected if "rate/lava" in row}) > 5


@pytest.mark.slow
def test_a_killed_run_with_an_average_goes_on_exactly(tmp_path, monkeypatch):
    """Validations and checkpoints are of the average, and updates go on with the latest weights."""
    killed_and_resumed([*ARGUMENTS, *AVERAGED], "last.ckpt", 2 * EVERY, tmp_path, monkeypatch)
    ends = "killed/runs/resumed/version_1", "whole/runs/resumed/version_0"
    saved = [torch.load(tmp_path / end / "checkpoints/last.ckpt", weights_only=True) for end in ends]
    for name in ("current_model_state", "averaging_state"):
        assert_identical(saved[0][name], saved[1][name], name)
    average, latest = saved[0]["state_dict"], saved[0]["current_model_state"]
    assert any(not torch.equal(average[name], latest[name]) for name in average)


@pytest.mark.slow
def test_a_killed_chain_of_drives_goes_on_exactly(tmp_path, monkeypatch):
    """Two updates per pass over the pairs of frames, checkpoints every two, a validation every three."""
    chain = shlex.split(
        "fit -c configs/navsim_chain.yaml --data.prompts_per_update=4 --data.train_prompts=8 --data.val_prompts=4 "
        "--model.group_size=4 --trainer.max_epochs=-1 --trainer.val_check_interval=3 "
        "--callbacks.checkpoints.every_n_train_steps=2"
    )
    expected = killed_and_resumed([*chain, *LOGGED], "last.ckpt", 4, tmp_path, monkeypatch)
    assert any("val/rate/EC" in row for row in expected)
    assert len({row["mean/progress"] for row in expected if "mean/progress" in row}) > 2


@pytest.mark.parametrize(
    "multipliers",
    [
        "--callbacks.multipliers.controller=PID --callbacks.multipliers.controller.kd=0.5 "
        "--callbacks.multipliers.controller.smoothing=0.5",
        "--callbacks.multipliers.controller=examples.controllers.nupi.NuPI "
        "--callbacks.multipliers.stall=StallDetector --callbacks.multipliers.stall.updates=4",
    ],
    ids=["PID", "NuPI with stall detector"],
)
def test_state_between_dual_steps_is_resumed(folder, multipliers):
    """A dual step every three updates, checkpoints every five: counts of two updates wait in the checkpoint."""
    arguments = [*ARGUMENTS, *shlex.split(multipliers), "--callbacks.multipliers.every_n_updates=3"]
    duals = resumed_from_the_middle(folder, *arguments)["callbacks"]["LagrangianCallback"]
    assert (duals["rates"]["opportunities"] > 0).all()
    assert "stall" in duals


@pytest.mark.slow
def test_a_critic_is_resumed(folder):
    """Its weights, its optimizer and schedule, and a warm-up that has ended."""
    critic = (
        "-c configs/ablations/gridworld/ppo_lagrangian.yaml --model.estimator.learning.warmup=3 "
        "--model.estimator.critic.hidden=[32] --model.estimator.lr_scheduler=torch.optim.lr_scheduler.StepLR "
        "--model.estimator.lr_scheduler.step_size=4"
    )
    # An override of the estimator would come after the file of the critic.
    arguments = [*RUN, *shlex.split(critic), "--model.estimator.learning.minibatch_size=200"]
    middle = resumed_from_the_middle(folder, *arguments)
    assert len(middle["optimizer_states"]) == len(middle["lr_schedulers"]) == 2
    assert middle["optimizer_states"][1]["param_groups"][0]["lr"] == pytest.approx(1e-4)
    assert sum("critic/loss" in row for row in rows(folder, 0, 0)) == 10
    # An evaluation needs no critic.
    main(["test", *arguments[1:], f"--ckpt_path=runs/resumed/version_0/checkpoints/step={EVERY}.ckpt"])


def test_float64_is_resumed(folder):
    """Lightning loads weights before it converts the module, which would round them."""
    weights = resumed_from_the_middle(folder, *ARGUMENTS, "--trainer.precision=64-true")["state_dict"]
    assert all(value.dtype == torch.float64 for value in weights.values() if value.is_floating_point())


def trained(updates, *callbacks, ckpt_path=None):
    """A trainer of Python after a small run, as a command's reads checkpoints."""
    trainer = quiet_trainer(*callbacks, max_steps=updates, plugins=[CheckpointFiles()])
    module = grid_module({"lava": Constraint(at_most=0.01)} if callbacks else None, max_steps=5)
    trainer.fit(module, GridworldDataModule(prompts_per_update=4, train_prompts=40), ckpt_path=ckpt_path)
    assert trainer.global_step == updates
    return trainer


def test_a_run_from_python_whose_callbacks_have_no_state_resumes(tmp_path):
    trained(1).save_checkpoint(tmp_path / "run.ckpt")
    assert torch.load(tmp_path / "run.ckpt", weights_only=True)["callbacks"] == {}
    trained(2, ckpt_path=tmp_path / "run.ckpt")


def test_a_checkpoint_without_a_part_of_the_state_is_refused_or_said(tmp_path):
    trained(1, LagrangianCallback()).save_checkpoint(tmp_path / "run.ckpt")
    saved = torch.load(tmp_path / "run.ckpt", weights_only=True)

    def resume(content):
        torch.save(content, tmp_path / "changed.ckpt")
        trained(2, LagrangianCallback(), ckpt_path=tmp_path / "changed.ckpt")

    weights = saved["state_dict"]
    lacks, other = "whole state of a run, but it lacks", "hold a run's state, but its"
    mistakes = [
        ({**saved, "optimizer_states": []}, f"{lacks} optimizer_states"),
        ({**saved, "loops": {}}, f"{lacks} loops"),
    ]
    for part in ("callbacks", "optimizer_states", "loops"):
        mistakes.append(({name: value for name, value in saved.items() if name != part}, f"{lacks} {part}"))
    for part in ("state_dict", "callbacks", "loops", "optimizer_states", "lr_schedulers"):
        mistakes.append(({**saved, part: 5}, f"{other} {part} is "))
    mistakes += [
        ({**saved, "global_step": "5"}, f"{other} global_step is "),
        ({**saved, "optimizer_states": [5]}, "its optimizer_states is "),
        ({**saved, "optimizer_states": [{"state": {}}]}, "optimizer 0 lacks param_groups"),
        ({**saved, "state_dict": {**weights, next(iter(weights)): 5}}, "is a int there and"),
        ([1, 2], "hold a run's state, but got a list"),
    ]
    for content, words in mistakes:
        with pytest.raises(UserError, match=words):
            resume(content)
    (optimizer,) = saved["optimizer_states"]
    with pytest.warns(UserWarning, match="no state of the optimizer, which begins anew"):
        resume({**saved, "optimizer_states": [optimizer | {"state": {}}]})


def test_the_comparison_of_runs_can_fail(folder):
    """A checkpoint without multipliers is continued differently."""
    main([*ARGUMENTS, "--trainer.max_steps=10"])
    saved = torch.load(f"runs/resumed/version_0/checkpoints/step={EVERY}.ckpt", weights_only=True)
    del saved["callbacks"]["LagrangianCallback"]
    torch.save(saved, "without.ckpt")
    main([*ARGUMENTS, "--trainer.max_steps=10", "--ckpt_path=without.ckpt"])
    assert rows(folder, 1, 0) != rows(folder, 0, EVERY)
