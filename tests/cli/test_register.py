"""One register of looks, by processes: no prompt is shown twice along a lineage, and every begun look is spent."""

import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from lightning_cgrpo.__main__ import run
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.run.looks import looks_in
from lightning_cgrpo.run.register import Register
from tests.forked import forked

REWARDS = """
import os, time

def brief(completions):
    if "RAISES" in os.environ:
        raise ValueError("the reward's own error")
    if "HANGS" in os.environ:
        time.sleep(600)
    return [-len(text) for text in completions]

def long(completions):
    return [float(len(text) > 10_000) for text in completions]
"""
JOB = """
threads: 1
trainer: {accelerator: cpu, max_steps: 1, limit_val_batches: 0, enable_progress_bar: false, enable_model_summary: false}
model:
  class_path: lightning_cgrpo.ConstrainedGRPO
  init_args:
    policy: {class_path: lightning_cgrpo.CausalLMPolicy, init_args: {model: tiny}}
    sampler: {class_path: lightning_cgrpo.GenerationSampler, init_args: {max_new_tokens: 4}}
    task:
      class_path: lightning_cgrpo.FunctionTask
      init_args: {signals: {brief: register_rewards.brief, long: register_rewards.long}}
    objective: {reward: brief, constraints: {long: {at_most: 0.9}}}
    optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 0.01}}
    group_size: 2
data:
  class_path: lightning_cgrpo.datamodules.PromptDataModule
  init_args: {path: train.jsonl, test_path: test.jsonl, prompts_per_update: 2}
callbacks:
  initial_rates: null
  progress: null
  multipliers: {class_path: lightning_cgrpo.callbacks.LagrangianCallback}
"""
TRAINED = 10
"""Prompts of the test file that train, too."""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    (folder / "register_rewards.py").write_text(REWARDS)
    (folder / "job.yaml").write_text(JOB)
    make_tiny_model(folder / "tiny", hidden_size=16, layers=1)
    numbers = {"train": range(TRAINED), "test": range(400)}
    for name, those in numbers.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"prompt": f"{n} apples?"}) + "\n" for n in those))
    return folder


@pytest.fixture(autouse=True)
def there(project, monkeypatch):
    (project / "looks.jsonl").unlink(missing_ok=True)
    monkeypatch.chdir(project)


def command(*words):
    sys.argv = ["lightning_cgrpo", *words]
    run()


def started(stack, name, *more, **environment):
    output = Path(f"output_{time.monotonic_ns()}.txt").absolute()
    words = [name, "-c", "job.yaml", *more]
    return stack.enter_context(forked(command, *words, output=output, environment=environment)), output


def done(name, *more, status=0, **environment):
    with ExitStack() as stack:
        process, output = started(stack, name, *more, **environment)
        process.join(120)
        assert process.exitcode == status, output.read_text()
        return " ".join(output.read_text().split())


def looks():
    return looks_in(Register(Path()).entries())


def assert_disjoint():
    """No prompt is in two looks."""
    shown = [number for look in looks() for number in look["shown"]["prompts"]]
    assert len(shown) == len({*shown}) > 0


LAST = "--ckpt_path=last"


@pytest.mark.slow
def test_two_at_once_show_other_prompts_and_share_the_error():
    done("fit", "--trainer.logger.name=two")
    with ExitStack() as stack:
        both = [started(stack, "certify", "--trainer.logger.name=two", LAST, "--prompts=20") for _ in range(2)]
        for process, output in both:
            process.join(120)
            assert process.exitcode == 0, output.read_text()
    assert sorted(look["look"] for look in looks()) == [1, 2] and all("decision" in look for look in looks())
    assert_disjoint()


@pytest.mark.slow
def test_killed_and_raising_looks_are_spent():
    done("fit", "--trainer.logger.name=killed")
    asked = ["--trainer.logger.name=killed", LAST, "--prompts=20"]
    for number in range(1, 11):
        with ExitStack() as stack:
            process, output = started(stack, "certify", *asked, HANGS="1")
            until = time.monotonic() + 60
            while len(looks()) < number and process.is_alive() and time.monotonic() < until:
                time.sleep(0.05)
            assert process.is_alive(), output.read_text()
            process.kill()
            process.join(10)
    assert "the reward's own error" in done("certify", *asked, status=1, RAISES="1")
    printed = done("certify", *asked)
    assert [look["look"] for look in looks()] == [*range(1, 13)] and "11 looks began without an end" in printed
    assert_disjoint()


@pytest.mark.slow
def test_a_lineage_shares_its_looks_through_other_folders_and_exports():
    name = "--trainer.logger.name=line"
    done("fit", name)
    done("certify", name, LAST, "--prompts=20")
    run_of = "--ckpt_path=runs/line/version_0/checkpoints/last.ckpt"
    done("fit", name, run_of, "--trainer.max_steps=2", "--trainer.logger.save_dir=other")
    printed = done("certify", name, LAST, "--trainer.logger.save_dir=other", "--prompts=20")
    assert "The prompts that trained the starting model are not known." in printed
    done("export", name, LAST, "--trainer.logger.save_dir=other", "--out=exported")
    further = ["--trainer.logger.name=further", "--model.policy.model=exported"]
    # With other training prompts, so that only the export's record tells those that trained before.
    Path("others.jsonl").write_text("".join(json.dumps({"prompt": f"{n} pears?"}) + "\n" for n in range(4)))
    done("fit", *further, "--data.path=others.jsonl")
    printed = done("certify", *further, LAST, "--data.path=others.jsonl", "--prompts=350")
    assert f"without {TRAINED} that trained or validated before" in printed
    assert "without 40 that earlier looks saw" in printed
    assert [look["look"] for look in looks()] == [1, 2, 3]
    assert_disjoint()
    # A record that somebody edited, or removed, makes nobody forget the looks.
    record = Path("exported/lineage.json")
    record.write_text(record.read_text().replace('"prompts known": false', '"prompts known": true'))
    assert "was edited by hand" in done("fit", *further, "--data.path=others.jsonl", "--seed_everything=1")
    record.unlink()
    done("fit", *further, "--data.path=others.jsonl", "--seed_everything=2")
    done("certify", *further, LAST, "--data.path=others.jsonl", "--prompts=10", "--seed_everything=2")
    assert looks()[-1]["look"] == 4
    assert_disjoint()


@pytest.mark.slow
def test_other_policies_at_the_same_prompts_are_told():
    for seed in range(2):
        own = [f"--trainer.logger.name=seed{seed}", f"--seed_everything={seed}", LAST]
        done("fit", *own[:2])
        printed = done("certify", *own, "--prompts=380")
        assert ("2 of 2 policies of this project were measured on these prompts." in printed) == (seed == 1)
    assert [look["look"] for look in looks()] == [1, 1]
    done("test", *own)
    assert [entry["event"] for entry in Register(Path()).entries()][-1] == "test"
    done("fit", "--trainer.logger.name=third", "--seed_everything=3")
    printed = done("certify", "--trainer.logger.name=third", LAST, "--prompts=300")
    assert "3 of 3 policies of this project were measured on these prompts, 1 of them by `test`." in printed
