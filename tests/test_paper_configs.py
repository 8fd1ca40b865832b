"""The configurations of the paper's GSM8K table: its numbers, and that they run, on a tiny model in Qwen's place."""

import json
import shlex
from pathlib import Path

import pytest
import torch
import yaml

from lightning_cgrpo.__main__ import main, read_arguments
from lightning_cgrpo.cli.configuration import PACKAGED
from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.policies.tiny.text import make_tiny_model

# Name: model, threshold of correctness and learning rate (paper, appendix "GSM8K").
PAPER = {
    "1.5b": ("Qwen/Qwen2.5-1.5B-Instruct", 0.75, 5e-6),
    "3b": ("Qwen/Qwen2.5-3B-Instruct", 0.90, 1e-6),
    "7b": ("Qwen/Qwen2.5-7B-Instruct", 0.95, 1e-6),
}
UPDATES = 932
OVERRIDES = sorted(path.name for path in (PACKAGED / "ablations" / "gsm8k").glob("*.yaml"))


def file(name):
    return f"configs/paper/gsm8k_qwen2_5_{name}.yaml"


def read(*names):
    config, flags = read_arguments("fit", [word for name in names for word in ("-c", name)])
    assert not flags
    return config


def leaves(value, key=""):
    if isinstance(value, dict):
        return {k: leaf for name, part in value.items() for k, leaf in leaves(part, f"{key}.{name}").items()}
    return {key: value}


# ---------------------------------------------------------------------- the numbers


@pytest.mark.parametrize("name", PAPER)
def test_what_the_paper_states(name):
    model, correctness, lr = PAPER[name]
    settings = read(file(name))["model"]["init_args"]
    assert settings["policy"]["init_args"]["model"] == model
    assert settings["objective"]["reward"] == "length"
    constrained = {
        signal: bound for signal, bound in settings["objective"]["constraints"].items() if bound.get("role") is None
    }
    assert constrained == {
        "correctness": {"at_least": correctness}, "format": {"at_least": 0.99}, "integer": {"at_least": 0.99}
    }  # fmt: skip
    assert settings["optimizer"]["class_path"] == "torch.optim.AdamW"
    assert settings["optimizer"]["init_args"]["lr"] == lr


def test_the_three_differ_in_what_the_paper_lets_differ():
    configs = [leaves(read(file(name))) for name in PAPER]
    assert configs[0].keys() == configs[1].keys() == configs[2].keys()
    different = {key for key in configs[0] if len({str(config[key]) for config in configs}) > 1}
    assert different == {
        ".model.init_args.policy.init_args.model",
        ".model.init_args.objective.constraints.correctness.at_least",
        ".model.init_args.optimizer.init_args.lr",
        ".model.init_args.lr_scheduler.init_args.max_lr",
        ".trainer.logger.init_args.name",
    }


def test_four_epochs(shared_data):
    config = read(file("1.5b"))
    questions = sum(1 for _ in (shared_data / "gsm8k" / "train.jsonl").open())
    per_epoch = questions // config["data"]["init_args"]["prompts_per_update"]
    assert (per_epoch, config["trainer"]["max_steps"]) == (233, 4 * per_epoch) == (233, UPDATES)


@pytest.mark.parametrize("name", PAPER)
def test_the_learning_rate_rises_for_a_tenth_of_the_updates_and_falls_to_nothing(name):
    settings = read(file(name))["model"]["init_args"]
    lr = settings["optimizer"]["init_args"]["lr"]
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    assert settings["lr_scheduler"]["class_path"] == "torch.optim.lr_scheduler.OneCycleLR"
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, **settings["lr_scheduler"]["init_args"])
    rates = []
    for _ in range(UPDATES):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    peak = rates.index(max(rates))
    assert 0.09 < peak / UPDATES < 0.11
    assert max(rates) == pytest.approx(lr, rel=1e-3)
    assert rates[0] < 0.05 * lr and rates[-1] < 1e-3 * lr
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)


def test_the_multipliers_hardly_move():
    """What the comment beside the dual learning rate says."""
    arguments = read(file("1.5b"))["callbacks"]["multipliers"]["init_args"]["controller"]["init_args"]
    controller = SoftmaxAdam(**arguments)
    controller.setup(3)
    assert controller.weights.tolist() == pytest.approx([0.25] * 4)
    for _ in range(UPDATES):
        controller.step(torch.tensor([0.2, 0.0, 0.0], dtype=torch.float64), torch.ones(3, dtype=torch.bool))
    assert controller.weights[1].item() == pytest.approx(0.287, abs=5e-4)


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("override", OVERRIDES)
def test_overrides_change_the_method_and_the_folder_alone(name, override):
    plain, changed = leaves(read(file(name))), leaves(read(file(name), f"configs/ablations/gsm8k/{override}"))
    different = {key for key in plain.keys() | changed.keys() if plain.get(key) != changed.get(key)}
    assert all(
        key.startswith((".callbacks.multipliers.", ".model.init_args.estimator."))
        or key == ".trainer.logger.init_args.name"
        for key in different
    )
    folder = changed[".trainer.logger.init_args.name"]
    assert folder == f"gsm8k_qwen2_5_{name},{override.removesuffix('.yaml')}"
    assert len(different) > 1


# ---------------------------------------------------------------------- they run


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Arguments that put a tiny model and a dozen questions in the place of the real ones."""
    folder = tmp_path_factory.mktemp("small")
    model = make_tiny_model(folder / "tiny", hidden_size=32, layers=1)
    for split, size in (("train", 12), ("test", 5)):
        rows = [{"question": f"{split}: {n} apples and 4?", "answer": f"#### {n + 4}"} for n in range(size)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return shlex.split(
        f"--model.policy.model={model} --data.path={folder} --data.prompts_per_update=3 --data.test_train_prompts=4 "
        "--model.group_size=4 --model.sampler.max_new_tokens=48 --trainer.accelerator=cpu --trainer.strategy=auto "
        "--trainer.logger.name=gsm8k "
        "--threads=1 --callbacks.progress=null --trainer.enable_progress_bar=false --trainer.enable_model_summary=false"
    )


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def learned(run):
    """The run's last checkpoint, in which the policy has moved away from its reference."""
    (path,) = Path(run).glob("version_*/checkpoints/*")
    assert path.name == "last.ckpt"
    saved = torch.load(path, weights_only=True)
    state = saved["state_dict"]
    pairs = [(value, state[f"reference.{name[7:]}"]) for name, value in state.items() if name.startswith("policy.")]
    assert len(pairs) > 5 and any(not torch.equal(policy, reference) for policy, reference in pairs)
    assert all(policy.dtype == torch.float32 and policy.isfinite().all() for policy, _ in pairs)
    return saved


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPER)
def test_two_updates(name, small):
    main(["fit", "-c", file(name), *small, "--trainer.max_steps=2"])
    saved = learned("runs/gsm8k")
    assert saved["global_step"] == 2
    assert saved["lr_schedulers"][0]["total_steps"] == UPDATES, "the first updates of the whole run's schedule"
    assert "LagrangianCallback" in saved["callbacks"]


@pytest.mark.slow
def test_goes_on_as_if_it_had_not_stopped(small):
    arguments = ["-c", file("1.5b"), *small, "--callbacks.initial_rates=null"]
    main(["fit", *arguments, "--trainer.max_steps=1"])
    main(["fit", *arguments, "--trainer.max_steps=2", "--ckpt_path=last"])
    newest = max(Path("runs").rglob("last.ckpt"), key=lambda path: path.stat().st_mtime)
    gone_on = torch.load(newest, weights_only=True)
    main(["fit", *arguments, "--trainer.max_steps=2", "--trainer.logger.init_args.name=whole"])
    whole = learned("runs/whole")
    assert gone_on["lr_schedulers"] == whole["lr_schedulers"] and gone_on["global_step"] == 2
    assert all(torch.equal(value, gone_on["state_dict"][key]) for key, value in whole["state_dict"].items())


@pytest.mark.slow
def test_is_tested_and_predicts(small):
    arguments = ["-c", file("1.5b"), *small]
    main(["test", *arguments])
    main(["predict", *arguments])
    assert len(Path("runs/gsm8k/start/predictions.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize("override", OVERRIDES)
def test_overrides_train(override, small):
    now = ["--model.estimator.learning.warmup=0"] * override.startswith("ppo")  # else only the critic learns at first
    main(
        ["fit", "-c", file("1.5b"), "-c", f"configs/ablations/gsm8k/{override}", *small, *now, "--trainer.max_steps=1"]
    )
    run = "runs/gsm8k"
    learned(run)
    kept = yaml.safe_load(next(Path(run).glob("version_0/config.yaml")).read_text())
    given = yaml.safe_load((PACKAGED / "ablations" / "gsm8k" / override).read_text())
    assert leaves(given.get("callbacks", {})).items() <= leaves(kept["callbacks"]).items()
    estimator = given.get("model", {}).get("estimator", "lightning_cgrpo.ScalarizedAdvantages")
    name = estimator["class_path"] if isinstance(estimator, dict) else estimator
    assert kept["model"]["init_args"]["estimator"]["class_path"].rpartition(".")[2] == name.rpartition(".")[2]


def test_ppo_at_the_papers_scale_trains(small):
    """The overlay of adapters and heads, on the tiny model."""
    pytest.importorskip("peft")
    now = ["--model.estimator.learning.warmup=0", "--trainer.precision=32-true", "--trainer.max_steps=1"]
    main(["fit", "-c", file("1.5b"), "-c", "configs/paper/gsm8k_ppo_lagrangian.yaml", *small, *now])
    learned("runs/gsm8k")
    (path,) = Path("runs/gsm8k").glob("version_*/checkpoints/last.ckpt")
    saved = torch.load(path, weights_only=True)["state_dict"]
    assert saved["estimator.critic.heads.weight"].shape == (4, 32)
    assert saved["estimator.critic.heads.weight"].abs().sum() > 0
