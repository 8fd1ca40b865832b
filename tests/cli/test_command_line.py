"""The command line from the first word to the files it leaves, run inside this process and in a folder of its own."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_cgrpo.__main__ import RUNS, TOOLS, main, read_arguments
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.settings.configuration import DEFAULTS, PACKAGED
from tests.bases import base_of
from tests.quiet import GRIDWORLD
from tests.refusals import refused

SMALL = [*GRIDWORLD, "--data.test_prompts=5", "--model.eval_group_size=2", "--trainer.logger.name=gridworld"]
ABLATIONS = sorted(path.name for path in (PACKAGED / "ablations" / "gridworld").glob("*.yaml"))


def command(name, arguments=""):
    main([name, *SMALL, *shlex.split(arguments)])


def test_help_lists_all_commands(capsys):
    for arguments in ([], ["--help"], ["-h"], ["help"]):
        main(arguments)
        text = capsys.readouterr().out
        assert text.startswith("usage: python -m lightning_cgrpo COMMAND")
        assert all(f"\n  {name}" in text for name in (*RUNS, *TOOLS))


@pytest.mark.parametrize(("word", "hint"), [("fitt", "'fit'"), ("train", "'fit'"), ("xyz", "Try --help")])
def test_unknown_command(word, hint):
    with pytest.raises(UserError, match=f"^Unknown command '{word}'.*{hint}"):
        main([word])


MISTAKES = {
    # classes
    "--callbacks.multipliers=Lagrange": "no class 'Lagrange'. Did you mean 'LagrangianCallback'?",
    "--callbacks.second='{class_path: LagrangianCallback, init_args: {controller: {margin: 0}}}'": (
        "class before its settings, but got none, try DampedAscent, "
    ),
    "--callbacks.multipliers.controller=SoftmaxAdm": "no class 'SoftmaxAdm'. Did you mean 'SoftmaxAdam'?",
    "--model.optimizer=Adamw": "There is no class 'Adamw'. Did you mean 'AdamW'?",
    # values
    "--trainer.max_steps=abc": "trainer.max_steps: Expected a whole number, but got abc.",
    "--seed_everything=-1": "seed_everything",
    "--trainer.gradient_clip_val=1.0": "model.optimization.max_grad_norm",
    "--trainer.accumulate_grad_batches=2": "model.optimization.micro_batch_size",
    "--trainer.gradient_clip_algorithm=value": "model.optimization.max_grad_norm",
    "--trainer.limit_train_batches=0": "Expected trainer.limit_train_batches to leave updates, but got 0",
    "--trainer.limit_train_batches=0.1": "increase the `limit_train_batches` argument",
    "--model.task.cost=maximum": "model.task.cost: Expected one of sum",
    "--callbacks.multipliers=null": "a callback that weights the constraints (lava, battery), but got none",
    "--callbacks.multipliers=FixedWeights": "try --callbacks.multipliers.weights.lava=0.1",
    "--model.optimizer.lr=.inf": "Expected finite settings of the optimizer, but got lr=inf",
    "--model.optimizer.lr=1.0e+39": "Expected finite settings of the optimizer, but got lr=1e+39",
    "--model.optimizer.lr=-1": "Expected model.optimizer to be valid, but got: Invalid learning rate: -1.0.",
    "--data.train_prompts=3": "Expected at least 4 training prompts",
    # files
    "--ckpt_path=last": "found none",
    # syntax
    "--trainer.max_steps": "as in --trainer.max_steps=VALUE",
}


@pytest.mark.parametrize("arguments", MISTAKES)
def test_a_mistake_is_answered_by_one_line(folder, arguments):
    """Which names what was given, and where there is something alike, what is probably meant. Nothing is trained."""
    assert MISTAKES[arguments] in refused(command, "fit", arguments)
    assert not list(folder.glob("**/*.ckpt"))


def test_a_run_needs_a_model():
    message = refused(main, ["fit", "--trainer.max_steps=3"])
    assert "a configuration, but got none, try -c configs/gridworld.yaml" in message


LIGHT = {"study", "report"}
"""Commands that import numpy, in a tenth of a second; last, because all commands of the test share a process."""
LAST = (
    "test -c configs/gridworld.yaml --ckpt_path=best",
    "certify -c configs/gridworld.yaml",
    "export -c configs/gridworld.yaml --out mine",
)
QUICK = {
    "fit -c configs/gridworld.yaml --trainer.max_step=3": "Did you mean 'max_steps'?",
    "test -c configs/gsm8k.yaml --ckpt_path=best": "but found none",  # a configuration with a look
    "fit -c configs/gridworld.yaml --model.objective.constraints.lava.at_most=abc": "a number, but got 'abc'",
    "fit -c configs/gridworld.yaml --model.objective.constraints.lava.at_least=0.5": "at_most: 0.01 and at_least: 0.5",
    "fit -c configs/gridworld.yaml --model.objective.constraints.batery=null": (
        "null to remove one of lava, battery from model.objective.constraints, but got 'batery'. Did you mean 'bat"
    ),
    "fit -c configs/gridworld.yaml --model.objective.constraints.lava=0.1": "constraints.lava to be settings (at_most",
    "export -c configs/gsm8k.yaml --out mine --model.polcy=x": "Did you mean 'policy'?",
    **dict.fromkeys(LAST, "Expected a checkpoint runs/gridworld/*/checkpoints/last.ckpt, but found none"),
    "fit -c configs/gridworld.yaml --ckpt_path=nowhere.ckpt": "There is no checkpoint 'nowhere.ckpt'",
    **{f"{name} --help": "usage: python -m" for name in ("", *sorted({*RUNS, *TOOLS}, key=lambda name: name in LIGHT))},
}
HEAVY = """\
import contextlib, io, json, sys
from lightning_cgrpo.__main__ import run
answers = {}
for command in json.loads(sys.argv[1]):
    sys.argv[1:] = command.split()
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try: run()
        except SystemExit: pass
    heavy = sorted({"torch", "lightning", "transformers", "matplotlib", "numpy"} & set(sys.modules))
    answers[command] = [out.getvalue(), err.getvalue(), heavy]
print(json.dumps(answers))
"""


OF_LIGHTNING = """\
import json, sys, time
import lightning.pytorch, lightning.pytorch.cli
theirs, before = time.process_time(), set(sys.modules)
import lightning_cgrpo.cli.command_line
print(json.dumps([theirs, time.process_time() - theirs, sorted(set(sys.modules) - before)]))
"""
LATER = {"transformers.modeling_utils", "gymnasium", "peft", "trl", "vllm", "datasets", "pandas", "wandb", "ray"}
"""Imported by the runs that need them."""


@pytest.mark.slow
def test_a_start_imports_little_besides_lightning():
    done = subprocess.run([sys.executable, "-c", OF_LIGHTNING], capture_output=True, text=True, check=True)
    theirs, ours, names = json.loads(done.stdout.splitlines()[-1])
    assert not LATER & set(names)
    assert ours < 0.3 * theirs, f"{ours:.2f} CPU s besides {theirs:.2f}"


def test_quick_answers_import_nothing_heavy(folder):
    """Help, misspelled keys and missing files must not wait seconds for torch, Lightning or transformers."""
    command = [sys.executable, "-c", HEAVY, json.dumps(list(QUICK))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    for command, (out, err, heavy) in json.loads(done.stdout).items():
        assert heavy == (["numpy"] if command.split()[0] in LIGHT else []), command
        assert QUICK[command] in out + err, command
        if "--help" not in command:
            assert err.startswith("lightning_cgrpo: error: ") and err.count("\n") == 1


@pytest.fixture(scope="module")
def trained(made_in_a_folder):
    """A folder with one run of five updates, checkpoints every two, validation every two."""
    intervals = "--trainer.max_steps=5 --trainer.log_every_n_steps=1 --trainer.val_check_interval=2 "
    intervals += "--callbacks.checkpoints.every_n_train_steps=2 --callbacks.checkpoints.save_top_k=-1"
    return made_in_a_folder(lambda: command("fit", intervals))


def test_intervals_mean_updates(trained):
    """With two epochs per update, three updates per pass and validation inside."""
    run = trained / "runs" / "gridworld" / "version_0"
    saved = {path.name: torch.load(path, weights_only=True) for path in (run / "checkpoints").glob("step=*.ckpt")}
    assert {name: of["global_step"] for name, of in saved.items()} == {"step=2.ckpt": 2, "step=4.ckpt": 4}
    events = EventAccumulator(str(run))
    events.Reload()
    assert [event.step for event in events.Scalars("reward/mean")] == [0, 1, 2, 3, 4]
    # Validation comes after two and four updates, and is logged under the last of them.
    assert [event.step for event in events.Scalars("val/reward/mean")] == [1, 3]


def test_validate_and_test(trained, monkeypatch, capsys):
    """Each prints one table with the objective in the user's terms, and not Lightning's as well.

    The same checkpoint twice gives the same table; the untrained policy another.
    """
    monkeypatch.chdir(trained)

    def table(name, checkpoint):
        command(name, f"--ckpt_path={checkpoint}")
        text = capsys.readouterr().out
        assert all(row in text for row in ("reward goal", "lava", "battery", "answer length"))
        assert text.count("<= 0.01") == 2 and f"{name.capitalize()} metric" not in text
        return text

    assert "6 x 2" in table("validate", "last")
    tested = table("test", "last")
    assert "5 x 2" in tested and "train" not in tested
    assert table("test", "last") == tested != table("test", "null")


def test_predictions(trained, monkeypatch):
    """A line per answer: five prompts with two each."""
    monkeypatch.chdir(trained)
    command("predict", "--ckpt_path=last --callbacks.predictions.path=answers/new.jsonl")
    lines = [json.loads(line) for line in Path("answers/new.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    for line in lines:
        assert {"index", "answer", "signals"} <= set(line)
        assert list(line["signals"]) == ["goal", "lava", "battery"]
        assert 1 <= len(line["answer"]) <= 20 and set(line["answer"]) <= set(range(5))
        assert line["signals"]["goal"] == (len(line["answer"]) < 20) or len(line["answer"]) == 20
        assert 0 <= line["signals"]["lava"] <= len(line["answer"])


@pytest.mark.slow
def test_another_objective_s_checkpoint_is_refused(trained, monkeypatch):
    """Multipliers of other constraints, or of the same in another order, would be taken for these."""
    monkeypatch.chdir(trained)
    monitor = "--ckpt_path=last --model.objective.constraints.battery.role=monitor"
    text = refused(command, "fit", f"{monitor} --trainer.max_steps=6")
    assert "multipliers of ['lava'] by SoftmaxAdam, but got ['lava', 'battery'] by SoftmaxAdam" in text
    text = refused(command, "fit", "--ckpt_path=last --trainer.max_steps=6 --callbacks.multipliers.controller=PID")
    assert "['lava', 'battery'] by PID, but got ['lava', 'battery'] by SoftmaxAdam" in text
    command("test", monitor)  # which needs no multipliers
    swapped = yaml.safe_load(Path("runs/gridworld/version_0/config.yaml").read_text())
    constraints = swapped["model"]["init_args"]["objective"]["constraints"]
    swapped["model"]["init_args"]["objective"]["constraints"] = dict(reversed(constraints.items()))
    Path("swapped.yaml").write_text(yaml.safe_dump(swapped, sort_keys=False))
    text = refused(main, ["fit", "-c", "swapped.yaml", "--ckpt_path=last", "--trainer.max_steps=6"])
    assert "of ['battery', 'lava'] by " in text and " got ['lava', 'battery']" in text


def found_by_torch(variable, *arguments, **given):
    """An environment variable as the first import of torch finds it, after which OpenMP is loaded."""
    Path("torch.py").write_text(f"import os, sys\nsys.exit(os.environ.get('{variable}', 'unset'))\n")
    names = {"OMP_WAIT_POLICY", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}
    environment = {name: value for name, value in os.environ.items() if name not in names}
    run = subprocess.run(
        [sys.executable, "-m", "lightning_cgrpo", "fit", *arguments],
        capture_output=True, text=True, timeout=120, check=False, env=environment | given,
    )  # fmt: skip
    return run.stderr.splitlines()[-1]


@pytest.mark.parametrize(("given", "policy"), [({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")])
def test_waiting_threads_sleep_unless_the_environment_says_otherwise(folder, given, policy):
    assert found_by_torch("OMP_WAIT_POLICY", *SMALL, **given) == policy


VLLM = ["-c", "configs/gsm8k.yaml", "--model.sampler.engine=VLLMServer"]


@pytest.mark.parametrize(
    ("arguments", "given", "segments"),
    [
        (SMALL, {}, "expandable_segments:True"),
        (VLLM, {}, "expandable_segments:True"),
        ([*VLLM, "--model.sampler.engine.push=IPCPush"], {}, "unset"),
        (SMALL, {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, "unset"),
        (SMALL, {"PYTORCH_ALLOC_CONF": "backend:native"}, "backend:native"),
    ],
)
def test_memory_on_a_gpu_grows_in_place_except_where_another_process_reads_it(folder, arguments, given, segments):
    assert found_by_torch("PYTORCH_ALLOC_CONF", *arguments, **given) == segments


def test_what_the_trainer_switches_off_is_left_out(folder, capsys):
    """Although the file names callbacks for it."""
    command("fit", "--trainer.max_steps=1 --trainer.enable_progress_bar=false --trainer.enable_checkpointing=false")
    assert list(folder.glob("runs/*/*/events*")) and not list(folder.rglob("*.ckpt"))
    assert "Epoch" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "path",
    sorted({*PACKAGED.rglob("*.yaml")} - {DEFAULTS, *PACKAGED.glob("studies/*")}),
    ids=lambda path: str(path.relative_to(PACKAGED)),
)
def test_every_shipped_configuration_is_spelled_right(path):
    """Alone, or stacked on the file that it changes."""
    base = base_of(path)
    stacked = ["-c", str(base)] if base else []
    config, flags = read_arguments("fit", [*stacked, "-c", str(path)])
    known = ("lightning_cgrpo.ConstrainedGRPO", "lightning_cgrpo.SupervisedFineTuning")
    assert config["model"]["class_path"] in known and not flags


@pytest.mark.parametrize("name", ABLATIONS)
def test_ablations_train(folder, name):
    """Each shipped override file, stacked on the gridworld, builds what it says and trains."""
    quiet = "--callbacks.pictures=null --callbacks.layout=null --callbacks.initial_rates=null"
    limits = "--trainer.max_steps=1 --trainer.limit_val_batches=0"
    command("fit", f"-c configs/ablations/gridworld/{name} {limits} {quiet}")
    (last,) = Path().glob("runs/gridworld*/version_*/checkpoints/last.ckpt")
    assert torch.load(last, weights_only=True)["global_step"] == 1


def test_constraints_and_signals_are_taken_out_by_null():
    config, _ = read_arguments("fit", ["-c", "configs/gridworld.yaml", "--model.objective.constraints.battery=null"])
    assert list(config["model"]["init_args"]["objective"]["constraints"]) == ["lava"]
    yours = ["-c", "examples/your_problem/your_problem.yaml"]
    changes = ["--model.task.signals.explained=null", "--model.objective.constraints.explained=null"]
    (before, _), (after, _) = read_arguments("fit", yours), read_arguments("fit", yours + changes)
    kept, all_of_them = (of["model"]["init_args"]["task"]["init_args"]["signals"] for of in (after, before))
    assert kept == {name: function for name, function in all_of_them.items() if name != "explained"}


@pytest.mark.slow
def test_a_run_without_a_logger_leaves_the_users_configuration_alone(folder):
    Path("config.yaml").write_text("{}")
    assert "config.yaml" in refused(command, "fit", "--trainer.logger=false --trainer.max_steps=1")
    assert Path("config.yaml").read_text() == "{}"
    Path("config.yaml").unlink()
    for _ in range(2):  # a run's own configuration is replaced
        command("fit", "--trainer.logger=false --trainer.max_steps=1")
    assert "max_steps: 1" in Path("config.yaml").read_text()


def test_own_classes_whose_code_exits_are_errors(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    own = "import sys\nfrom lightning_cgrpo.tasks.gridworld import GridworldTask\n\nclass Own(GridworldTask):\n"
    (folder / "exits_made.py").write_text(f"{own}    def __init__(self):\n        sys.exit(0)\n")
    (folder / "exits_imported.py").write_text(f"{own}    pass\n\nsys.exit(0)\n")
    for module in ("exits_made", "exits_imported"):
        assert "configuration names" in refused(command, "fit", f"--model.task={module}.Own")
