"""Resumes tell every difference, or refuse what training cannot continue from."""

import functools
import json
import operator
from pathlib import Path

import pytest
import torch

from lightning_cgrpo import load
from lightning_cgrpo.__main__ import main
from lightning_cgrpo.cli.loading import put_weights, read_checkpoint
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.run.manifest import Manifest, differences
from tests.quiet import GRIDWORLD
from tests.refusals import refused

RUN = [*GRIDWORLD, "--trainer.logger.name=mine", "--trainer.max_steps=2"]
LAST = "--ckpt_path=runs/mine/version_0/checkpoints/last.ckpt"


@pytest.fixture(scope="module")
def home(made_in_a_folder):
    return made_in_a_folder(lambda: main(["fit", *RUN]))


@pytest.fixture(autouse=True)
def there(home, monkeypatch):
    monkeypatch.chdir(home)


def resumed(capsys, *changes):
    main(["fit", *RUN, LAST, "--trainer.max_steps=3", *changes])
    printed = capsys.readouterr()
    lines = (printed.out + printed.err).splitlines()
    return [line for line in lines if line.startswith(("from update ", "Precision: "))]


def test_an_unchanged_resume_tells_its_length_alone(capsys):
    assert resumed(capsys) == ["from update 2: trainer.max_steps 2 -> 3"]
    saved = torch.load("runs/mine/version_0/checkpoints/last.ckpt", weights_only=True)
    manifest = Manifest.of(saved)
    assert manifest.lineage == (manifest.name,) and manifest.settings["model.group_size"]
    readable = json.loads(Path("runs/mine/version_0/manifest.json").read_text())
    assert readable["settings"] == manifest.settings and readable["sizes"] == manifest.sizes


@pytest.mark.parametrize(
    ("changes", "told"),
    [([], []), (["--trainer.precision=bf16-mixed"], ["not as in training: precision 32-true -> bf16-mixed"])],
)
def test_an_evaluation_tells_what_is_not_as_in_training_and_warns_of_nothing(capsys, recwarn, changes, told):
    main(["test", *RUN, LAST, *changes])
    assert [line for line in capsys.readouterr().out.splitlines() if "not as in training" in line] == told
    assert not [warning for warning in recwarn if "callbacks used to create" in str(warning.message)]


def test_changed_and_removed_settings_are_told_and_taken(capsys):
    changes = [
        "--model.optimization.clip_low=0.1",
        "--model.optimizer.lr=0.002",
        "--data.seed=5",
        "--seed_everything=7",
    ]
    told = resumed(capsys, *changes)
    assert {
        "from update 2: model.optimization.clip_low 0.2 -> 0.1",
        "from update 2: model.optimizer.lr 0.0005 -> 0.002",
        "from update 2: data.seed null -> 5",
        "from update 2: seed_everything 0 -> 7",
    } <= {*told}
    newest = max(Path().glob("runs/mine/version_*/checkpoints/last.ckpt"), key=lambda path: path.stat().st_mtime)
    (state,) = torch.load(newest, weights_only=True)["optimizer_states"]
    assert state["param_groups"][0]["lr"] == 0.002


def test_another_precision_is_told_once(capsys, monkeypatch):
    """Chosen by a setting, or by a machine with a GPU."""
    told = ["from update 2: trainer.max_steps 2 -> 3", "from update 2: precision 32-true -> bf16-mixed"]
    assert resumed(capsys, "--trainer.precision=bf16-mixed") == told
    assert resumed(capsys, "--trainer.precision=32-true") == told[:1]
    monkeypatch.setattr("lightning_cgrpo.cli.command_line.automatic_precision", lambda *_: "bf16-mixed")
    chosen, *lines = resumed(capsys)
    assert chosen.startswith("Precision: bf16-mixed, because") and lines == told


def test_settings_of_the_optimizer_apply_beside_a_schedule(capsys):
    schedule = ["--model.lr_scheduler=torch.optim.lr_scheduler.LinearLR", "--trainer.logger.name=scheduled"]
    main(["fit", *RUN, *schedule])
    last = "--ckpt_path=runs/scheduled/version_0/checkpoints/last.ckpt"
    again = ["fit", *RUN, *schedule, last, "--trainer.max_steps=3"]
    main([*again, "--model.optimizer.betas=[0.8,0.9]"])
    assert "model.optimizer.betas [0.9, 0.999] -> [0.8, 0.9]" in capsys.readouterr().out
    saved = torch.load("runs/scheduled/version_1/checkpoints/last.ckpt", weights_only=True)
    assert [tuple(group["betas"]) for group in saved["optimizer_states"][0]["param_groups"]] == [(0.8, 0.9)]
    message = refused(main, [*again, "--model.optimizer.lr=0.001"])
    assert "whose schedule began with 0.0005, but it would begin with 0.001" in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--model.optimizer=SGD", "--model.optimizer.lr=0.1"], "Expected the optimizer of the checkpoint"),
        (["--model.lr_scheduler=torch.optim.lr_scheduler.LinearLR"], "Expected the schedule of the checkpoint"),
        (["--model.optimizer.amsgrad=true"], "to hold 'max_exp_avg_sq', which the optimizer's settings now need"),
        (
            ["--callbacks.multipliers=FixedWeights", "--callbacks.multipliers.weights={lava: 0.1, battery: 0.1}"],
            "Expected the multipliers of the checkpoint's run, by LagrangianCallback, but got another",
        ),
    ],
)
def test_what_cannot_be_continued_is_refused(capsys, change, words):
    with pytest.raises(UserError, match=words):
        resumed(capsys, *change)


def fingerprints(records):
    return torch.tensor([[hash(text), hash(text)] for text in records])


def made(records, seen=()):
    prompts = {"train": fingerprints(records)}
    manifest = Manifest({}, {"train": len(records)}, prompts, torch.tensor(seen, dtype=torch.int64))
    return Manifest(**{**manifest.state(), "lineage": (manifest.name,)})


def test_prompts_are_compared_as_a_set_and_in_order():
    before = made("abcd")
    assert differences(before, made("abcd")) == []
    assert differences(before, made("abce")) == ["1 of 4 training prompts differ"]
    assert differences(before, made("abdc")) == ["the training prompts have another order"]
    assert differences(before, made("abcdef")) == ["4 training prompts -> 6, of which 2 are new"]
    assert differences(Manifest({}), Manifest({}, sizes={"val": 1})) == ["0 validation prompts -> 1"]
    named, other = (Manifest({}, files={"model.reward": text}) for text in "ab")
    assert differences(named, other) == ["the file of model.reward differs"] and named.name != other.name


def test_a_validation_prompt_that_trained_is_told():
    def split(train, val):
        prompts = {"train": fingerprints(train), "val": fingerprints(val)}
        return Manifest({}, {"train": len(train), "val": len(val)}, prompts)

    lines = differences(split("abcd", "ef"), split("bcdf", "aef"))
    assert "1 of 3 validation prompts trained before" in lines
    assert differences(split("abcd", "ef"), split("abcd", "ef")) == []


def test_prompts_that_trained_before_a_resume_stay_used():
    now = made("cd").continuing(made("ab"))
    assert {*now.used.tolist()} == {hash(text) for text in "abcd"}
    again = made("cd").continuing(now)
    assert torch.equal(again.used, now.used) and again.lineage == now.lineage and len(now.lineage) == 2


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("settings", 5),
        ("lineage", 3),
        ("lineage", [3]),
        ("prompts", {"train": torch.zeros(4, dtype=torch.int64)}),
        ("seen", [1, 2]),
        ("sizes", {"train": "many"}),
        ("code", ["my_rewards"]),
    ],
)
def test_a_damaged_manifest_is_refused_by_its_part(part, value):
    state = made("ab").state()
    assert torch.equal(Manifest.of({"manifest": state}).used, made("ab").used)
    with pytest.raises(UserError, match=f"manifest to be one that a run wrote, but its {part} is "):
        Manifest.of({"manifest": {**state, part: value}})
    assert Manifest.of({"manifest": 5}) is None, "another program's"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (("state_dict", "policy.net.0.weight"), "the weight policy.net.0.weight"),
        (("callbacks", "LagrangianCallback", "controller", "logits.1"), "LagrangianCallback: controller logits.1"),
        (("optimizer_states", 0, "state", 0, "exp_avg"), "the state of optimizer 0: weight 0 exp_avg"),
    ],
    ids=["weight", "multipliers", "optimizer"],
)
def test_a_nan_in_a_checkpoint_is_refused_by_name(path, name):
    """A run would resume, and train nothing ever after."""
    saved = torch.load("runs/mine/version_0/checkpoints/last.ckpt", weights_only=True)
    functools.reduce(operator.getitem, path, saved).view(-1)[0] = torch.nan
    torch.save(saved, checkpoint := Path("with_nan.ckpt"))
    with pytest.raises(UserError, match=f"to hold numbers, but {name} has a NaN, from which no training recovers"):
        main(["fit", *RUN, f"--ckpt_path={checkpoint}", "--trainer.max_steps=3"])
    if path[0] == "state_dict":
        with pytest.raises(UserError, match=r"to hold numbers, but the weight net\.0\.weight has a NaN"):
            put_weights(load("runs/mine/version_0").policy, *read_checkpoint(checkpoint)[1:], checkpoint)


OWN_TASK = """
import json
import os
from lightning_cgrpo.tasks.gridworld import GridworldTask

SIGN = json.load(open("sign_of_manifest.json")) * int(os.environ.get("SIGN_OF_MANIFEST", 1))

class Mine(GridworldTask):
    def score(self, prompts, rollouts):
        signals = super().score(prompts, rollouts)
        signals["goal"].value *= SIGN
        return signals
"""


def test_what_a_reward_reads_is_told(capsys, monkeypatch):
    Path("task_of_manifest.py").write_text(OWN_TASK)
    Path("sign_of_manifest.json").write_text("1")
    monkeypatch.setenv("SIGN_OF_MANIFEST", "1")
    monkeypatch.syspath_prepend("")
    run = [*GRIDWORLD, "--trainer.logger.name=own", "--model.task=task_of_manifest.Mine"]
    main(["fit", *run, "--trainer.max_steps=1"])
    Path("sign_of_manifest.json").write_text("-1")
    monkeypatch.setenv("SIGN_OF_MANIFEST", "-1")
    capsys.readouterr()
    main(["fit", *run, "--ckpt_path=runs/own/version_0/checkpoints/last.ckpt", "--trainer.max_steps=2"])
    lines = capsys.readouterr().out.splitlines()
    assert "from update 1: the file of task_of_manifest, sign_of_manifest.json differs" in lines
    assert "from update 1: the environment's SIGN_OF_MANIFEST differs" in lines
