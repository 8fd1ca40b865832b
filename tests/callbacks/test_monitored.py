"""Callbacks that monitor a metric, and the best and the last checkpoint that they lead to."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint
from torch.distributed.checkpoint.state_dict_saver import save

from lightning_cgrpo.callbacks import Checkpoints
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.run.checkpoints.files import best_of
from tests.callbacks.small_runs import STEPS, Stop, trained
from tests.refusals import refused


class Seen(Callback):
    """What the trainer has for callbacks, by hook and update."""

    def __init__(self):
        self.metrics, self.latest, self.measured = {}, {}, {}

    def note(self, hook, trainer):
        self.metrics[hook, trainer.global_step] = {k: v.item() for k, v in trainer.callback_metrics.items()}

    def on_train_batch_end(self, trainer, module, outputs, *_):
        self.note("update", trainer)
        self.latest[trainer.global_step] = dict(module.latest_metrics)
        rate = outputs["violations"].sum() / outputs["opportunities"].sum()
        self.measured[trainer.global_step] = pytest.approx(rate.item(), rel=1e-6)

    def on_validation_end(self, trainer, *_):
        self.note("validation", trainer)

    def on_train_epoch_end(self, trainer, *_):
        self.note("epoch", trainer)


pytestmark = pytest.mark.usefixtures("folder")


def ranking(**options):
    return Checkpoints(
        monitor="rate/lava", every_n_train_steps=1, save_top_k=2, save_last=True, filename="{step}", **options
    )


@pytest.mark.parametrize("every", [1, 3, 50])
def test_metrics_of_updates_are_there_for_callbacks_at_all_times(every):
    seen = Seen()
    trained(seen, log_every_n_steps=every)
    values = {step: metrics["rate/lava"] for (hook, step), metrics in seen.metrics.items() if hook == "update"}
    assert values == seen.measured and set(values) == set(range(1, STEPS + 1))
    assert {step: latest["rate/lava"] for step, latest in seen.latest.items()} == seen.measured
    assert len(set(values.values())) > 1
    for (hook, step), metrics in seen.metrics.items():
        assert metrics["rate/lava"] == values[step], hook
        assert {"reward/mean", "multiplier/lava", "multiplier/reward", "policy/entropy"} <= set(metrics)
    assert {step for hook, step in seen.metrics if hook == "validation"} == {2, 4, 6, 8}
    assert {step for hook, step in seen.metrics if hook == "epoch"} == {3, 6, 8}


@pytest.mark.parametrize("by_epoch", [True, False])
def test_early_stopping(by_epoch):
    """A rate would have to grow by more than it can."""
    stopping = EarlyStopping("rate/lava", min_delta=10.0, patience=1, mode="max", check_on_train_epoch_end=by_epoch)
    trainer = trained(stopping)
    assert trainer.global_step == (6 if by_epoch else 4)
    assert stopping.best_score.isfinite() and "did not improve" in stopping.stopping_reason_message


def test_beside_code_of_ones_own_a_similar_name_is_told_after_the_first_update():
    """Code that logs the metric itself runs on; other names are the code's own affair."""

    class Logs(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, number):
            module.log("rate/lavaa", 0.5)
            told.append(len(caught))

    told: list[int] = []
    stopping = EarlyStopping("rate/lavaa", patience=100, check_on_train_epoch_end=True)
    ranked = Checkpoints(monitor="val/rate/lavaa", every_n_train_steps=2)
    with pytest.warns(UserWarning, match="Did you mean 'val/rate/lava'") as caught, pytest.raises(UserError):
        trained(Logs(), ranked, stopping)
    lines = [str(w.message) for w in caught if "Did you mean" in str(w.message)]
    assert len(lines) == 1 and lines[0].startswith("Expected Checkpoints to monitor")
    assert told[0] == 0 and told[1] >= 1  # before the validation that fails


MERIT = {"monitor": "val/merit", "mode": "max", "save_last": True, "filename": "{step}"}
RATE = {"monitor": "rate/lava", "every_n_train_steps": 2, "save_top_k": 2, "save_last": True, "filename": "{step}"}


def ranks(folder):
    """Scores and names of the best checkpoints, the best of all, the last score, and what the rule keeps."""
    callbacks = torch.load(folder / "last.ckpt", weights_only=True)["callbacks"]
    (state,) = (state for name, state in callbacks.items() if name.startswith("Checkpoints"))
    scores = sorted((score.item(), Path(path).name) for path, score in state["best_k_models"].items())
    return scores, Path(state["best_model_path"]).name, state["current_score"].item(), state["selection"]


@pytest.mark.parametrize(
    ("given", "every", "stop"),
    [
        (RATE, 3, (4, "validation")),
        (RATE | {"monitor": "val/rate/lava"}, 1, (5, "update")),
        (RATE | {"monitor": "val/rate/lava"}, 3, (6, "validation")),
        (MERIT | {"every_n_train_steps": 3, "save_top_k": 2}, 1, (4, "validation")),
        (MERIT | {"every_n_train_steps": 3, "save_top_k": 2}, 1, (5, "update")),
    ],
)
def test_a_resumed_run_ranks_as_one_that_nothing_interrupted(given, every, stop):
    """Also where nothing has been logged since the resume, and where the checkpoint comes before its validation."""
    trained(Checkpoints(**given), name="whole", log_every_n_steps=every)
    with pytest.raises(ChildProcessError):
        trained(Checkpoints(**given), Stop(*stop), log_every_n_steps=every)
    trained(Checkpoints(**given), ckpt_path="last", log_every_n_steps=every)
    whole = ranks(Path("runs/whole/version_0/checkpoints"))
    assert ranks(Path("runs/run/version_1/checkpoints")) == whole and len(whole[0]) == 2
    assert whole[1] == whole[0][-1 if "mode" in given else 0][1]
    best, _ = best_of(Path("runs/run/version_1/checkpoints/last.ckpt"))
    assert best.exists() and best.name == whole[1]


@pytest.mark.parametrize(("minutes", "written"), [(0, range(STEPS)), (5, [0])])
def test_last_is_written_by_time(minutes, written):
    """Before each update, last.ckpt is there from the update before."""
    seen = []

    class Look(Callback):
        def on_train_batch_start(self, trainer, *_):
            last = Path(checkpoints.dirpath) / "last.ckpt"
            seen.append(torch.load(last, weights_only=True)["global_step"] if last.exists() else 0)

    checkpoints = Checkpoints(save_last=True, every_n_train_steps=100, every_n_minutes=minutes)
    trained(Look(), checkpoints)
    assert set(seen) == set(written) and len(seen) == STEPS


def test_the_best_of_a_run_that_was_moved_or_thinned():
    trained(ranking())
    best, monitor = best_of(Path("runs/run/version_0/checkpoints/last.ckpt"))
    assert monitor == "rate/lava"
    assert best == Path("runs/run/version_0/checkpoints") / best.name and best.exists()
    shutil.move("runs", "elsewhere")
    moved, _ = best_of(Path("elsewhere/run/version_0/checkpoints/last.ckpt"))
    assert moved == Path("elsewhere/run/version_0/checkpoints") / best.name and moved.exists()
    moved.unlink()
    message = refused(best_of, Path("elsewhere/run/version_0/checkpoints/last.ckpt"))
    assert message.startswith("Expected the best checkpoint by rate/lava at '") and "', but it is gone, try" in message


def test_a_run_that_ranks_nothing_has_no_best():
    trained(Checkpoints(every_n_train_steps=2, save_last=True))
    last = Path("runs/run/version_0/checkpoints/last.ckpt")
    assert best_of(last) is None
    last.write_bytes(last.read_bytes()[:100])
    assert "to be a whole checkpoint" in refused(best_of, last)


def test_the_best_of_a_sharded_checkpoint(tmp_path):
    """A directory, whose weights aren't read."""
    for name in ("last.ckpt", "step=2.ckpt"):
        save({"state_dict": {"a": torch.zeros(2)}}, checkpoint_id=tmp_path / name, no_dist=True)
        state = {"monitor": "rate/lava", "best_model_path": str(tmp_path / "step=2.ckpt"), "dirpath": str(tmp_path)}
        torch.save({"callbacks": {"Checkpoints": state}}, tmp_path / name / "meta.pt")
    assert best_of(tmp_path / "last.ckpt") == (tmp_path / "step=2.ckpt", "rate/lava")


def test_every_validation_ranks_its_own_policy_whatever_the_interval_of_checkpoints():
    """Validations are at updates 2, 4, 6 and 8; a checkpoint at update 3 has no validation of its own."""
    seen = Seen()
    checkpoints = Checkpoints(**MERIT, every_n_train_steps=3, save_top_k=-1)
    trained(seen, checkpoints)
    ranks = {int(Path(path).stem[5:]): rank.item() for path, rank in checkpoints.best_k_models.items()}
    merits = {step: seen.metrics["validation", step]["val/merit"] for step in (2, 4, 6, 8)}
    assert set(ranks) == set(merits) and len(set(merits.values())) == 4
    assert all(rank in (0, step) for step, rank in ranks.items()), "the update at which it was chosen"
    best, _ = best_of(Path("runs/run/version_0/checkpoints/last.ckpt"))
    assert best.stem == f"step={max(ranks, key=ranks.get)}"


def test_merits_by_another_threshold_rank_no_checkpoint():
    """The first policy meets its loose threshold, which says nothing of a strict one."""
    trained(Checkpoints(**MERIT, every_n_train_steps=2), at_most=0.9, max_steps=2)
    trained(Checkpoints(**MERIT, every_n_train_steps=2), ckpt_path="last", max_steps=4)
    (before, *_), (after, *_) = (ranks(Path(f"runs/run/version_{number}/checkpoints")) for number in (0, 1))
    assert [name for _, name in before + after] == ["step=2.ckpt", "step=4.ckpt"]


def test_without_validation_the_newest_checkpoint_is_kept_and_none_is_the_best():
    trained(Checkpoints(**MERIT, every_n_train_steps=2, save_top_k=1), limit_val_batches=0)
    folder = Path("runs/run/version_0/checkpoints")
    assert {path.name for path in folder.glob("*.ckpt")} == {"step=8.ckpt", "last.ckpt"}
    assert best_of(folder / "last.ckpt") is None


def test_validation_that_can_say_nothing_is_announced(caplog):
    """Eight prompts, against a threshold of 1 %."""
    with caplog.at_level("INFO"):
        trained(Checkpoints(**MERIT, every_n_train_steps=2), max_steps=1)
    assert "8 validation prompts are too few to show lava <= 0.01 (299 needed)" in caplog.text


NEVER = ("val/accuracy", "val_loss", "reward/meen", "val/multiplier/lava", "rate/lavaa")


@pytest.mark.parametrize(
    ("monitoring", "monitor"),
    [
        *((lambda name: Checkpoints(monitor=name, every_n_train_steps=5), name) for name in NEVER),
        (lambda name: EarlyStopping(name, min_delta=10.0, patience=1), NEVER[0]),
        (lambda name: ModelCheckpoint(monitor=name, every_n_train_steps=5), NEVER[2]),
    ],
)
def test_a_metric_that_never_comes_is_refused_after_the_first_update(monitoring, monitor):
    seen = []
    count = LambdaCallback(on_train_batch_start=lambda *_: seen.append(0))
    message = refused(lambda: trained(monitoring(monitor), count, val_check_interval=6))
    assert f"monitor a metric of this run, but got '{monitor}'" in message and len(seen) == 1
    assert monitor != "rate/lavaa" or "Did you mean 'rate/lava'" in message


@pytest.mark.parametrize("monitor", ["val/rate/lava", "val/reward/mean", "val/merit", "rate/lava", "val/faults/reward"])
def test_a_metric_that_comes_later_is_awaited(monitor):
    strict = not monitor.startswith("val/faults")
    trained(EarlyStopping(monitor, patience=3, strict=strict, verbose=False), val_check_interval=2, max_steps=2)


@pytest.mark.parametrize("logged", ["val/accuracy", "val/accurate"])
def test_a_metric_of_the_users_own_callback_may_come_later(logged):
    class Own(Callback):
        def on_validation_epoch_end(self, trainer, module):
            module.log(logged, 1.0)

    checkpoints = Checkpoints(monitor="val/accuracy", every_n_train_steps=4)
    comes = logged == "val/accuracy"
    with nullcontext() if comes else pytest.raises(UserError, match="got 'val/accuracy'"):
        trained(checkpoints, Own(), val_check_interval=2, max_steps=4)
    assert checkpoints.best_model_score == (1.0 if comes else None)
