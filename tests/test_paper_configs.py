"""The configurations of the paper's GSM8K table run, on a tiny model in Qwen's place."""

import shlex
from pathlib import Path

import pytest
import torch

from lightning_cgrpo.__main__ import main
from lightning_cgrpo.settings.configuration import PACKAGED
from tests.gsm8k_records import write_records
from tests.quiet import QUIET

NAMES = ("1.5b", "3b", "7b")
UPDATES = 932  # four epochs of 7,473 questions, 32 an update
OVERRIDES = sorted(
    {path.name for path in (PACKAGED / "ablations" / "gsm8k").glob("*.yaml")} - {"group_scale.yaml", "no_look.yaml"}
)


def file(name):
    return f"configs/paper/gsm8k_qwen2_5_{name}.yaml"


@pytest.fixture(scope="module")
def small(tmp_path_factory, tiny_model):
    """Arguments that put a tiny model and a dozen questions in the place of the real ones."""
    folder = write_records(tmp_path_factory.mktemp("small") / "records")
    return shlex.split(
        f"--model.policy.model={tiny_model} --data.path={folder} --data.prompts_per_update=3 "
        "--data.test_train_prompts=4 --model.group_size=4 --model.sampler.max_new_tokens=48 --trainer.accelerator=cpu "
        f"--trainer.strategy=auto --trainer.logger.name=gsm8k --threads=1 --callbacks.progress=null {QUIET}"
    )


pytestmark = pytest.mark.usefixtures("folder")


def learned(run):
    """The run's last checkpoint, in which the policy has moved away from its reference."""
    (path,) = Path(run).glob("version_*/checkpoints/*")
    saved = torch.load(path, weights_only=True)
    state = saved["state_dict"]
    pairs = [(value, state[f"reference.{name[7:]}"]) for name, value in state.items() if name.startswith("policy.")]
    assert len(pairs) > 5 and any(not torch.equal(policy, reference) for policy, reference in pairs)
    assert all(policy.dtype == torch.float32 and policy.isfinite().all() for policy, _ in pairs)
    return saved


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_goes_on_as_if_it_had_not_stopped(name, small):
    """In the first updates of the whole run's schedule; then the newest policy is tested and predicts."""
    arguments = ["-c", file(name), *small, "--callbacks.initial_rates=null"]
    main(["fit", *arguments, "--trainer.max_steps=2", "--trainer.logger.init_args.name=whole"])
    whole = learned("runs/whole")
    assert whole["lr_schedulers"][0]["total_steps"] == UPDATES and "LagrangianCallback" in whole["callbacks"]
    main(["fit", *arguments, "--trainer.max_steps=1"])
    main(["fit", *arguments, "--trainer.max_steps=2", "--ckpt_path=last"])
    gone_on = torch.load(Path("runs/gsm8k/version_1/checkpoints/last.ckpt"), weights_only=True)
    assert gone_on["lr_schedulers"] == whole["lr_schedulers"] and gone_on["global_step"] == 2
    assert all(torch.equal(value, gone_on["state_dict"][key]) for key, value in whole["state_dict"].items())
    main(["test", *arguments])
    main(["predict", *arguments])
    (predictions,) = Path("runs").rglob("predictions.jsonl")
    assert predictions == Path("runs/gsm8k/version_1/predictions.jsonl")  # beside the checkpoint, not of the start
    assert len(predictions.read_text().splitlines()) == 5


@pytest.mark.parametrize(
    "override", [pytest.param(name, marks=() if name.startswith("ppo") else pytest.mark.slow) for name in OVERRIDES]
)
def test_overrides_train(override, small):
    now = ["--model.estimator.learning.warmup=0"] * override.startswith("ppo")  # else only the critic learns at first
    overlay = ["-c", f"configs/ablations/gsm8k/{override}"]
    main(["fit", "-c", file("1.5b"), *overlay, *small, *now, "--trainer.max_steps=1"])
    learned("runs/gsm8k")


def test_ppo_at_the_papers_scale_trains(small):
    """The overlay of adapters and heads, on the tiny model."""
    now = ["--model.estimator.learning.warmup=0", "--trainer.precision=32-true", "--trainer.max_steps=1"]
    main(["fit", "-c", file("1.5b"), "-c", "configs/paper/gsm8k_ppo_lagrangian.yaml", *small, *now])
    saved = learned("runs/gsm8k")["state_dict"]
    assert saved["estimator.critic.heads.weight"].shape == (4, 32)
    assert saved["estimator.critic.heads.weight"].abs().sum() > 0
