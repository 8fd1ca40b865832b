"""GSM8K from records to checkpoints through a (tiny) language model."""

import json
import shlex
import statistics
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_cgrpo import GSM8KTask
from lightning_cgrpo.__main__ import main
from tests.gsm8k_records import write_records
from tests.quiet import QUIET


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Twelve questions to train on, five to test, in GSM8K's format."""
    return write_records(tmp_path_factory.mktemp("data") / "gsm8k")


LONGEST = 48  # long enough that some answers of a random model end


def arguments(model, data):
    return shlex.split(
        f"-c configs/gsm8k.yaml --model.policy.model={model} --data=GSM8KDataModule --data.path={data} "
        "--model.objective.look=null "
        "--data.val_prompts=3 --trainer.logger.name=gsm8k --data.prompts_per_update=3 --model.group_size=4 "
        f"--model.sampler.max_new_tokens={LONGEST} {QUIET} "
        "--trainer.accelerator=cpu --trainer.val_check_interval=2 --threads=1 --callbacks.progress=null "
        "--callbacks.checkpoints.every_n_train_steps=1 --callbacks.samples.every_n_updates=1"
    )


def train_and_read(model, data):
    """Two updates; returns their events."""
    main(["fit", *arguments(model, data), "--trainer.max_steps=2"])
    version = Path("runs/gsm8k/version_0")
    saved = torch.load(version / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["global_step"] == 2 and "LagrangianCallback" in saved["callbacks"]
    weights = saved["state_dict"]
    trained = [name for name in weights if name.startswith("policy.")]
    moved = [not torch.equal(weights[name], weights[f"reference.{name[7:]}"]) for name in trained]
    assert len(moved) > 5 and any(moved), "the policy learns, away from its reference"
    return events_of(version)


def events_of(path):
    events = EventAccumulator(str(path))
    events.Reload()
    return events


def test_records_to_checkpoints(tiny_model, records, folder):
    """Fit, then test and predict from the checkpoint: every tag, readable completions, one line per answer."""
    events = train_and_read(tiny_model, records)
    tags = set(events.Tags()["scalars"])
    bounded = {"correctness", "format", "integer", "truncated"}
    weighted = {"reward", "correctness", "format", "integer"}
    for families, names in (
        (("rate", "threshold", "val/rate", "initial/rate"), bounded),
        (("multiplier", "groups/informative"), weighted),
    ):
        assert {f"{family}/{name}" for family in families for name in names} <= tags
    assert "multiplier/truncated" not in tags, "what is only monitored has no multiplier"
    assert {"policy/kl", "policy/entropy", "policy/loss", "policy/grad_norm", "reward/mean", "rollout/length"} <= tags
    # Rates and thresholds are in the user's orientation.
    assert [event.value for event in events.Scalars("threshold/correctness")] == pytest.approx([0.85, 0.85])
    for name in bounded:
        assert all(0 <= event.value <= 1 for event in events.Scalars(f"rate/{name}"))
    assert events.Scalars("policy/kl")[0].value == pytest.approx(0, abs=1e-6)

    samples = events.Tensors("samples/text_summary")
    assert [sample.step for sample in samples] == [0, 1]
    text = samples[0].tensor_proto.string_val[0].decode()
    assert "**Prompt**\n\n    train: Tom has " in text, "the question, as a block of its own"
    assert "nswer** (" in text and "correctness " in text and "truncated " in text

    main(["test", *arguments(tiny_model, records), "--ckpt_path=last"])
    main(["predict", *arguments(tiny_model, records), "--ckpt_path=last"])
    lines = [json.loads(line) for line in Path("runs/gsm8k/version_0/predictions.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines] == [0, 1, 2, 3, 4]
    assert all("test: " in line["prompt"] for line in lines), "the question itself"
    assert all(isinstance(line["answer"], str) and line["signals"].keys() == GSM8KTask.signals.keys() for line in lines)
    assert all(1 <= line["signals"]["tokens"] <= LONGEST for line in lines)
    assert all((line["signals"]["length"] == -1) >= line["signals"]["truncated"] for line in lines)


def embedded(updates, *more):
    words = f"-c configs/gsm8k.yaml {QUIET} --callbacks.progress=null --trainer.max_steps={updates}"
    return [*shlex.split(words), *more]


def scalars(path):
    events = events_of(path)
    return {tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overlay", "method", "shorter"),
    [
        ("", "gsm8k", 0.85),  # the default dual gives correctness more weight at first, so answers shorten later
        ("-c configs/ablations/gsm8k/softmax_adam.yaml", "gsm8k,softmax_adam", 0.75),
    ],
)
def test_the_embedded_task_learns(folder, overlay, method, shorter):
    """In 40 of its 300 updates: rates come closer to their thresholds, and answers get shorter."""
    main(["fit", *embedded(40, *shlex.split(overlay))])
    seen = scalars(f"runs/{method}/version_0")
    first, last = slice(0, 3), slice(-10, None)
    for name in ("format", "integer"):
        rates = seen[f"rate/{name}"]
        assert statistics.fmean(rates[last]) > statistics.fmean(rates[first]) + 0.03
    assert statistics.fmean(seen["rate/correctness"][last]) > 0.75
    assert statistics.fmean(seen["rollout/length"][last]) < shorter * statistics.fmean(seen["rollout/length"][first])
