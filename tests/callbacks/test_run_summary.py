"""What a run writes about itself: at its end, whatever the end, and when it is resumed."""

import contextlib
import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightning_cgrpo.__main__ import main
from lightning_cgrpo.callbacks.run_summary import _read_resumed
from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.run.identity import identity_of

SMALL = shlex.split(
    "-c configs/gridworld.yaml --data.prompts_per_update=2 --data.train_prompts=16 --data.val_prompts=8 "
    "--model.group_size=4 --model.policy.hidden=[8] --model.sampler.environment.max_steps=10 --trainer.max_steps=8 "
    "--trainer.val_check_interval=4 --callbacks.checkpoints.every_n_train_steps=2 --callbacks.progress=null "
    "--trainer.log_every_n_steps=1 --trainer.enable_progress_bar=false --trainer.enable_model_summary=false "
    "--callbacks.pictures=null"
)
ENDS = """
import os, signal
from lightning.pytorch import Callback
class Ends(Callback):
    def __init__(self, how: str):
        self.how = how
    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == 3:
            if self.how == "stops":
                trainer.should_stop = True
            elif self.how == "interrupts":
                os.kill(os.getpid(), signal.SIGINT)
            else:
                raise dict(exits=SystemExit(0), fails=OSError("no\\nroom"))[self.how]
class Breaks(Callback):
    def on_fit_start(self, *_):
        raise OSError("no camera")
"""


@pytest.fixture
def fit(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    (folder / "ends.py").write_text(ENDS)

    def run(*arguments, name="first"):
        with contextlib.suppress(SystemExit, KeyboardInterrupt, OSError, UserError):
            main(["fit", *SMALL, *arguments, f"--trainer.logger.name={name}"])
        return json.loads(Path(f"runs/{name}/version_0/summary.json").read_text())

    return run


def test_a_run_that_never_began_shows_no_card_of_an_earlier_run(fit, tmp_path, capsys):
    fit()
    here = ["--trainer.logger=false", f"--trainer.default_root_dir={tmp_path}/runs/first/version_0"]
    assert "Run finished" in capsys.readouterr().out
    with pytest.raises(OSError, match="camera"):
        main(["fit", *SMALL, *here, "--callbacks.breaks=ends.Breaks"])
    assert "Run" not in capsys.readouterr().out


def ending(how):
    return f"--callbacks.ends={{class_path: ends.Ends, init_args: {{how: {how}}}}}"


def test_a_finished_run(fit):
    summary = fit()
    assert (summary["status"], summary["updates"], summary["asked"], summary["answers"]) == ("finished", 8, 8, 64)
    config, _ = read_arguments("fit", SMALL)
    assert {key: summary[key] for key in ("method", "seed", "length")} == identity_of(config)
    lava = {"kind": "rate", "direction": "at_most", "threshold": 0.01, "role": "constrain"}
    assert summary["constraints"]["lava"] == lava and summary["machine"]["torch"] and summary["error"] is None
    assert summary["seconds"] > 0 and summary["cpu_seconds"] > 0 and 50 < summary["peak_mb"] < 50_000
    measured = summary["measured"]
    assert [measured[stage]["update"] for stage in ("before", "last", "end")] == [0, 8, 8]
    assert measured["last"]["prompts"] == 8 and measured["best"]["update"] in (4, 8)
    for stage in ("before", "last", "best"):
        rate = measured[stage]["constraints"]["lava"]
        assert 0 <= rate["low"] <= rate["value"] <= rate["high"] <= 1
    [best] = Path("runs/first/version_0").glob("checkpoints/step=*.ckpt")
    assert best.name == f"step={measured['best']['update']}.ckpt"
    assert summary["best"]["checkpoint"] == f"checkpoints/{best.name}" and summary["best"]["monitor"] == "val/merit"


@pytest.mark.parametrize(
    ("how", "status"), [("exits", "failed"), ("interrupts", "interrupted"), ("fails", "failed"), ("stops", "finished")]
)
def test_the_status_says_how_a_run_ended(fit, how, status):
    summary = fit(ending(how))
    assert summary["status"] == status and summary["updates"] in (3, 4) and summary["asked"] == 8
    error = {"fails": "OSError: no", "exits": "SystemExit"}.get(how)
    assert summary["error"] == error or (error and summary["error"].startswith(error))


def test_a_resumed_run_adds_up(fit):
    first = fit(ending("interrupts"))
    second = fit("--ckpt_path=runs/first/version_0/checkpoints/last.ckpt", name="second")
    assert (second["status"], second["updates"], second["resumed"]) == ("finished", 8, "../../first/version_0")
    assert second["answers"] == first["answers"] + 8 * (8 - first["updates"]) == 64, "an interrupt leaves a checkpoint"
    assert (Path("runs/second/version_0") / second["best"]["checkpoint"]).exists()
    assert second["seconds"] > first["seconds"] and second["measured"]["before"] == first["measured"]["before"]
    loose = ["--model.objective.constraints.lava.at_most=0.02", "--trainer.max_steps=9"]
    third = fit("--ckpt_path=runs/second/version_0/checkpoints/last.ckpt", *loose, name="third")
    assert third["updates"] == 9 and third["best"] is None and "best" not in third["measured"], "by another threshold"


def test_of_equal_validations_the_first_has_the_best_checkpoint_also_after_a_resume(fit):
    """A policy that learns nothing: every validation has the same score. By merit, the latest would be the best."""
    still = ["--model.optimizer.lr=0", "--callbacks.multipliers=FixedWeights"]
    still += ["--callbacks.checkpoints.monitor=val/rate/lava", "--callbacks.checkpoints.mode=min"]
    still += ["--callbacks.multipliers.weights={lava: 1, battery: 1}", "--callbacks.checkpoints.save_top_k=-1"]
    whole = fit(*still, name="whole")
    assert whole["measured"]["best"]["update"] == 4 and whole["measured"]["last"]["update"] == 8
    best = whole["measured"]["best"] | {"update": 0}
    assert whole["measured"]["last"] | {"update": 0} == best, "a tie"
    # From before the second validation, of a run whose summary tells of a later one.
    fourth = Path("runs/whole/version_0/checkpoints/step=4.ckpt")
    resumed = fit(*still, f"--ckpt_path={fourth}", name="resumed")
    assert resumed["measured"]["best"] == whole["measured"]["best"]
    assert (Path("runs/resumed/version_0") / resumed["best"]["checkpoint"]).resolve() == fourth.resolve()


def test_a_run_resumed_from_an_earlier_checkpoint_knows_no_later_best(fit):
    """The summary beside the checkpoint tells of validations that the resumed run has not made."""
    kept = ["--callbacks.checkpoints.save_top_k=-1", "--callbacks.checkpoints.monitor=val/rate/lava"]
    kept += ["--callbacks.checkpoints.mode=min", "--model.optimizer.lr=0.01"]
    whole = fit(*kept, name="whole")
    assert whole["measured"]["best"]["update"] == 8
    fourth = "--ckpt_path=runs/whole/version_0/checkpoints/step=4.ckpt"
    part = fit(*kept, fourth, "--trainer.max_steps=5", name="part")
    assert part["measured"]["best"] == part["measured"]["last"] and part["measured"]["best"]["update"] == 4
    assert part["best"]["score"] == pytest.approx(part["measured"]["best"]["constraints"]["lava"]["value"])
    assert part["measured"]["before"] == whole["measured"]["before"]


def test_a_foreign_summary_beside_a_checkpoint_is_not_added_to(tmp_path):
    trainer, form = SimpleNamespace(ckpt_path=str(tmp_path / "checkpoints/last.ckpt")), "lightning_cgrpo run 2"
    for content in ([1], 5, {"answers": "many"}, {"format": "another"}, None, {"format": form, "faults": 5}):
        (tmp_path / "summary.json").write_text("{" if content is None else json.dumps(content))
        assert _read_resumed(trainer) == (None, tmp_path), content
    own = {"format": form, "faults": {}, "answers": 5, "seconds": 1.5, "cpu_seconds": 1, "peak_mb": 9}
    (tmp_path / "summary.json").write_text(json.dumps(own))
    found, _ = _read_resumed(trainer)
    assert found is not None and own.items() <= found.as_json().items()
