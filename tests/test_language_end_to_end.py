"""GSM8K from records to checkpoints through a (tiny) language model, and an update worked out by hand."""

import json
import math
import shlex
import statistics
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

from lightning.pytorch import Callback, Trainer  # noqa: E402
from lightning.pytorch.loggers.logger import DummyLogger  # noqa: E402
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

from lightning_cgrpo import ConstrainedGRPO, Constraint, GSM8KTask, Objective, Optimization  # noqa: E402
from lightning_cgrpo.__main__ import main, run  # noqa: E402
from lightning_cgrpo.callbacks import LagrangianCallback  # noqa: E402
from lightning_cgrpo.datamodules import GSM8KDataModule  # noqa: E402
from lightning_cgrpo.errors import UserError  # noqa: E402
from lightning_cgrpo.multipliers import SoftmaxAdam  # noqa: E402
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy  # noqa: E402
from lightning_cgrpo.policies.tiny.text import make_tiny_model  # noqa: E402
from lightning_cgrpo.records import RecordError  # noqa: E402
from lightning_cgrpo.rollout import Rollouts  # noqa: E402
from lightning_cgrpo.samplers.sampler import Sampler  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", hidden_size=32, layers=1)


def write_records(folder, train=12, test=5):
    folder.mkdir()
    for split, size in (("train", train), ("test", test)):
        rows = [
            {"question": f"{split}: Tom has {n} apples, and buys 4.", "answer": f"{n} + 4 = {n + 4}\n#### {n + 4}"}
            for n in range(size)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Twelve questions to train on, five to test, in GSM8K's format."""
    return write_records(tmp_path_factory.mktemp("data") / "gsm8k")


# ---------------------------------------------------------------------- through the command line

LONGEST = 48  # long enough that some answers of a random model end


def arguments(model, data):
    return shlex.split(
        f"-c configs/gsm8k.yaml --model.policy.model={model} --data=GSM8KDataModule --data.path={data} "
        "--data.val_prompts=3 --trainer.logger.name=gsm8k "
        "--data.prompts_per_update=3 --data.max_eval_prompts=4 --model.group_size=4 "
        f"--model.sampler.max_new_tokens={LONGEST} "
        "--trainer.accelerator=cpu --trainer.val_check_interval=2 --threads=1 --callbacks.progress=null "
        "--trainer.enable_progress_bar=false --trainer.enable_model_summary=false "
        "--callbacks.checkpoints.every_n_train_steps=1 --callbacks.samples.every_n_updates=1"
    )


def train_and_read(model, data):
    """Two updates; returns their events."""
    main(["fit", *arguments(model, data), "--trainer.max_steps=2"])
    version = Path("runs/gsm8k/version_0")
    saved = torch.load(version / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["global_step"] == 2 and "LagrangianCallback" in saved["callbacks"]
    moved = [
        not torch.equal(value, saved["state_dict"][name.replace("policy.", "reference.", 1)])
        for name, value in saved["state_dict"].items()
        if name.startswith("policy.")
    ]
    assert len(moved) > 5 and any(moved), "the policy learns, away from its reference"
    events = EventAccumulator(str(version))
    events.Reload()
    return events


def test_records_to_checkpoints(model, records, tmp_path, monkeypatch):
    """Fit, then test and predict from the checkpoint: every tag, readable completions, one line per answer."""
    monkeypatch.chdir(tmp_path)
    events = train_and_read(model, records)
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
    assert all(f"**Answer {n}** (tokens " in text for n in (1, 2, 3, 4)) and "advantage " in text

    main(["test", *arguments(model, records), "--ckpt_path=last"])
    main(["predict", *arguments(model, records), "--ckpt_path=last"])
    lines = [json.loads(line) for line in Path("runs/gsm8k/version_0/predictions.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines] == [0, 1, 2, 3]
    assert all("test: " in line["prompt"] for line in lines), "the question itself"
    assert all(isinstance(line["answer"], str) and line["signals"].keys() == GSM8KTask.signals.keys() for line in lines)
    assert all(1 <= line["signals"]["tokens"] <= LONGEST for line in lines)
    assert all((line["signals"]["length"] == -1) >= line["signals"]["truncated"] for line in lines)


def test_real_records(model, shared_data, tmp_path, monkeypatch):
    """The 7,473 training questions themselves."""
    monkeypatch.chdir(tmp_path)
    events = train_and_read(model, shared_data / "gsm8k")
    prompt = events.Tensors("samples/text_summary")[0].tensor_proto.string_val[0].decode()
    question = prompt.partition("    ")[2].partition("\n")[0]
    known = [json.loads(line)["question"] for line in (shared_data / "gsm8k" / "train.jsonl").open()]
    assert any(question in whole for whole in known)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"question": "1 + 1?", "answer": "#### 2"', "train.jsonl:2: Expected a JSON object on the line"),
        ('{"question": "1 + 1?"}', "train.jsonl:2: Expected a field 'answer', but got question."),
        ('{"question": "1 + 1?", "answer": "2"}', "train.jsonl:2: Expected field 'answer' to end in '#### <number>'"),
        (None, "train.jsonl to hold records, but got none."),
    ],
)
def test_malformed_records_are_named(model, tmp_path, monkeypatch, capsys, line, complaint):
    """The command ends with one line on the file and its line, before a model is read."""
    data = write_records(tmp_path / "data", train=4)
    content = (data / "train.jsonl").read_text().splitlines()
    (data / "train.jsonl").write_text("" if line is None else "\n".join([content[0], line, *content[1:]]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(CausalLMPolicy, "load", lambda policy: pytest.fail("the model must not be read"))
    monkeypatch.setattr("sys.argv", ["lightning_cgrpo", "fit", *arguments(model, data)])
    with pytest.raises(SystemExit) as exit_:
        run()
    error = [text for text in capsys.readouterr().err.splitlines() if text.startswith("lightning_cgrpo: error: ")]
    assert exit_.value.code == 2 and len(error) == 1 and complaint in error[0]


def test_no_model(records, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"Expected model to be a directory with a Hugging Face .*tiny-model DIR"):
        main(["fit", *arguments("./nowhere", records)])


# ---------------------------------------------------------------------- the embedded default


def embedded(updates, *more):
    options = "--trainer.enable_progress_bar=false --trainer.enable_model_summary=false --callbacks.progress=null"
    return [*shlex.split(f"-c configs/gsm8k.yaml {options} --trainer.max_steps={updates}"), *more]


def scalars(path):
    events = EventAccumulator(path)
    events.Reload()
    return {tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_the_embedded_default_runs_without_a_download(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lightning_cgrpo.hub.hub_answers", lambda: pytest.fail("the network must not be asked"))
    main(["fit", *embedded(2)])
    capsys.readouterr()
    small = ["--data.test_prompts=8", "--data.test_train_prompts=8", "--ckpt_path=last"]
    main(["test", *embedded(2, *small)])
    shown = capsys.readouterr().out
    assert "correctness" in shown and "train" in shown and "test" in shown


@pytest.mark.slow
def test_the_embedded_default_learns(tmp_path, monkeypatch):
    """In 40 of its 300 updates: rates come closer to their thresholds, and answers get much shorter."""
    monkeypatch.chdir(tmp_path)
    main(["fit", *embedded(40)])
    seen = scalars("runs/gsm8k/version_0")
    first, last = slice(0, 3), slice(-10, None)
    for name in ("format", "integer"):
        rates = seen[f"rate/{name}"]
        assert statistics.fmean(rates[last]) > statistics.fmean(rates[first]) + 0.03
    assert statistics.fmean(seen["rate/correctness"][last]) > 0.75
    assert statistics.fmean(seen["rollout/length"][last]) < 0.75 * statistics.fmean(seen["rollout/length"][first])


# ---------------------------------------------------------------------- an update by hand

MAX_TOKENS, GROUP = 48, 8


class Scripted(Sampler):
    """Half of each group answers right; two give a wrong number, one a word without the format, one never ends."""

    def rollout(self, policy, prompts, group_size, noise):
        ids, mask = policy.encode(prompts.columns["prompt"])
        actions = torch.full((len(prompts), group_size, MAX_TOKENS), policy.pad_token)
        lengths = torch.zeros(len(prompts), group_size, dtype=torch.int64)
        for row, gold in enumerate(prompts.columns["answer"]):
            for column, text in enumerate(self.answers(gold)):
                tokens = policy.tokenizer(text, add_special_tokens=False).input_ids
                tokens = tokens[:MAX_TOKENS] if text.endswith("...") else [*tokens, policy.stop_tokens[-1]]
                assert len(tokens) <= MAX_TOKENS
                actions[row, column, : len(tokens)] = torch.tensor(tokens)
                lengths[row, column] = len(tokens)
        taken = torch.arange(MAX_TOKENS) < lengths[..., None]
        texts = policy.decode(actions.flatten(0, 1), taken.flatten(0, 1))
        return Rollouts(
            actions,
            taken,
            {"prompt_ids": ids, "prompt_mask": mask},
            info={
                "text": [texts[start : start + group_size] for start in range(0, len(texts), group_size)],
                "truncated": (lengths == MAX_TOKENS),
            },
        )

    @staticmethod
    def answers(gold):
        right = [f"<think>{'so ' * words}</think>\n<answer>{gold}</answer>" for words in (0, 1, 2, 4)]
        wrong = [f"<think>{'so ' * words}</think>\n<answer>{int(gold) + 1}</answer>" for words in (1, 3)]
        return [*right, *wrong, "<answer>many</answer>", "<think>" + "so " * 60 + "..."]


class Informed(Scripted):
    """Gives the log-probabilities, too."""

    def rollout(self, policy, prompts, group_size, noise):
        rollouts = super().rollout(policy, prompts, group_size, noise)
        rollouts.log_probs = policy(policy.examples(rollouts)).log_probs.view(rollouts.mask.shape)
        return rollouts


class Memory(DummyLogger):
    def __init__(self):
        super().__init__()
        self.updates = {}

    def log_metrics(self, metrics, step=None):
        self.updates.setdefault(step, {}).update(metrics)


class Keep(Callback):
    def __init__(self):
        self.outputs, self.weights = [], []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.outputs.append(outputs)
        self.weights.append(pl_module.weights.clone())


def train(model, data, updates=2, sampler=None, precision="64-true", lr=0.1, **optimization):
    """The module after some updates, what was logged, and what was put out."""
    module = ConstrainedGRPO(
        CausalLMPolicy(str(model), dtype={"64-true": "float64"}.get(precision, "float32")),
        sampler or Scripted(),
        GSM8KTask(MAX_TOKENS),
        Objective(
            "length",
            {
                "correctness": Constraint(at_least=0.75),
                "format": Constraint(at_least=0.99),
                "integer": Constraint(at_least=0.99),
                "truncated": Constraint(at_most=0.01, role="monitor"),
            },
        ),
        # Not Adam, which makes much of gradients that are nothing but rounding.
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr),
        optimization=Optimization(**{"kl_weight": 0.04, **optimization}),
        group_size=GROUP,
    )
    memory, keep = Memory(), Keep()
    Trainer(
        accelerator="cpu",
        precision=precision,
        max_steps=updates,
        log_every_n_steps=1,
        logger=memory,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[LagrangianCallback(SoftmaxAdam(lr=0.02)), keep],
        limit_val_batches=0,
    ).fit(module, GSM8KDataModule(str(data), prompts_per_update=3, val_prompts=0))
    assert not any(tag.startswith("faults/") for update in memory.updates.values() for tag in update)
    return module, memory.updates, keep


def parameters(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.fixture(scope="module")
def by_hand(model, records):
    return train(model, records)


def test_rates_by_hand(by_hand):
    """4 of 8 right, 6 of 8 well-formed, 6 of 8 integers, 1 of 8 truncated; shown as the user put it."""
    _, metrics, keep = by_hand
    for update in (0, 1):
        shown = {name: metrics[update][f"rate/{name}"] for name in ("correctness", "format", "integer", "truncated")}
        assert shown == {"correctness": 4 / 8, "format": 6 / 8, "integer": 6 / 8, "truncated": 1 / 8}
        assert keep.outputs[update]["violations"].tolist() == [3 * 4, 3 * 2, 3 * 2]
        assert keep.outputs[update]["opportunities"].tolist() == [24, 24, 24]
        lengths = keep.outputs[update]["rollouts"].lengths
        assert lengths.unique().numel() >= 6
        reward = -torch.where(lengths == MAX_TOKENS, MAX_TOKENS, lengths).double().mean().item() / MAX_TOKENS
        assert metrics[update]["reward/mean"] == pytest.approx(reward, rel=1e-6)


def z_of_indicator(holds):
    """With m of 8: sqrt((8 - m) / m) where it holds, -sqrt(m / (8 - m)) where not."""
    m = sum(holds)
    return [math.sqrt((8 - m) / m) if one else -math.sqrt(m / (8 - m)) for one in holds]


def test_advantages_by_hand(by_hand):
    """A quarter of each Z in the first update; lengths standardized by the standard library."""
    _, _, keep = by_hand
    correct = z_of_indicator([1, 1, 1, 1, 0, 0, 0, 0])
    assert correct == [1, 1, 1, 1, -1, -1, -1, -1]
    formatted = integer = z_of_indicator([1, 1, 1, 1, 1, 1, 0, 0])
    for row, lengths in enumerate(keep.outputs[0]["rollouts"].lengths.tolist()):
        rewards = [-length / MAX_TOKENS for length in lengths]
        mean, std = statistics.fmean(rewards), statistics.pstdev(rewards)
        expected = [
            (((reward - mean) / std) + c + f + i) / 4
            for reward, c, f, i in zip(rewards, correct, formatted, integer, strict=True)
        ]
        assert keep.outputs[0]["advantages"][row].tolist() == pytest.approx(expected, abs=1e-6)


def test_dual_steps_by_hand(by_hand):
    """Two steps of Adam on the logits, in plain Python. The violated 1 - rate is above its bound by .25, .24, .24."""
    _, metrics, keep = by_hand
    violations = [0.0, 0.5 - 0.25, 0.25 - 0.01, 0.25 - 0.01]
    logits, first, second = [0.02] * 4, [0.0] * 4, [0.0] * 4

    def softmax():
        total = sum(map(math.exp, logits))
        return [math.exp(z) / total for z in logits]

    for step in (1, 2):
        weights = softmax()
        assert [metrics[step - 1][f"multiplier/{n}"] for n in ("reward", "correctness", "format", "integer")] == (
            pytest.approx(weights, abs=1e-9)
        )
        mean = sum(weight * v for weight, v in zip(weights, violations, strict=True))
        for j in range(4):
            gradient = weights[j] * (violations[j] - mean)
            first[j] = 0.9 * first[j] + 0.1 * gradient
            second[j] = 0.999 * second[j] + 0.001 * gradient**2
            direction = first[j] / (1 - 0.9**step) / (math.sqrt(second[j] / (1 - 0.999**step)) + 1e-8)
            logits[j] += 0.02 * direction
        assert keep.weights[step - 1].tolist() == pytest.approx(softmax(), abs=1e-9)
    assert keep.weights[1][1] > 0.25 > keep.weights[1][0], "what is violated gains, the reward loses"


def test_the_policy_follows_its_advantages(model, records):
    """A small step makes the mean of advantage x log-probability of the answers greater: that is the loss."""
    module, metrics, keep = train(model, records, updates=1, lr=0.01)
    initial = CausalLMPolicy(str(model), dtype="float64")
    initial.load()
    rollouts, advantages = keep.outputs[0]["rollouts"], keep.outputs[0]["advantages"]
    with torch.no_grad():
        examples = module.policy.examples(rollouts)
        gain = (module.policy(examples).log_probs - initial(examples).log_probs).view(rollouts.mask.shape)
    gain = (gain * rollouts.mask).sum(-1) / rollouts.lengths
    # To first order, the squared norm of the gradient times the learning rate.
    assert (advantages * gain).mean().item() == pytest.approx(0.01 * metrics[0]["policy/grad_norm"] ** 2, rel=0.05)


def test_the_reference_stays_and_the_kl_starts_at_zero(by_hand, model):
    module, metrics, _ = by_hand
    initial = CausalLMPolicy(str(model), dtype="float64")
    initial.load()
    assert torch.equal(parameters(module.reference), parameters(initial))
    assert not torch.equal(parameters(module.policy), parameters(initial))
    assert not any(parameter.requires_grad for parameter in module.reference.parameters())
    assert metrics[0]["policy/kl"] == pytest.approx(0, abs=1e-15)
    assert metrics[1]["policy/kl"] > 1e-9


@pytest.mark.parametrize("minibatch_size", [None, 8], ids=["one minibatch", "three minibatches"])
def test_old_log_probs_are_those_of_the_policy_that_sampled(model, records, minibatch_size):
    """With one minibatch they come from the first pass, with several from a pass before; both equal the sampler's own.

    Two epochs, so that ratios other than 1 matter.
    """
    results = [
        train(model, records, sampler=sampler(), epochs=2, minibatch_size=minibatch_size)[0].policy
        for sampler in (Scripted, Informed)
    ]
    torch.testing.assert_close(*map(parameters, results), rtol=0, atol=1e-12)


@pytest.mark.parametrize("minibatch_size", [None, 8])
def test_micro_batches_do_not_change_the_result(model, records, minibatch_size):
    """Of 24 answers in one or three minibatches, 5 at a time."""
    common = {"epochs": 2, "minibatch_size": minibatch_size, "max_grad_norm": 0.5}
    whole, metrics, _ = train(model, records, **common)
    pieces, in_pieces, _ = train(model, records, micro_batch_size=5, **common)
    # The norms of these models are computed in float32, whatever the dtype.
    torch.testing.assert_close(parameters(whole.policy), parameters(pieces.policy), rtol=0, atol=1e-8)
    for update in (0, 1):
        for name in ("loss", "kl", "entropy", "clip_fraction", "grad_norm"):
            tag = f"policy/{name}"
            assert in_pieces[update][tag] == pytest.approx(metrics[update][tag], rel=1e-6, abs=1e-9), tag


def test_epochs_and_minibatches_do_change_it(model, records, by_hand):
    """The two tests above can fail: parameters differ where steps differ."""
    more, _, _ = train(model, records, epochs=2)
    assert (parameters(more.policy) - parameters(by_hand[0].policy)).abs().max() > 1e-6
    parts, _, _ = train(model, records, epochs=2, minibatch_size=8)
    assert (parameters(more.policy) - parameters(parts.policy)).abs().max() > 1e-6


def test_bfloat16_mixed_precision(model, records):
    """Weights stay float32, and advantages and duals are what they were: they don't see the policy's precision."""
    module, metrics, keep = train(model, records, precision="bf16-mixed")
    assert {parameter.dtype for parameter in module.policy.parameters()} == {torch.float32}
    assert parameters(module.policy).isfinite().all()
    assert not torch.equal(parameters(module.policy), parameters(module.reference))
    assert metrics[0]["rate/correctness"] == 0.5
    assert keep.weights[0][1] > 0.25
    assert metrics[0]["policy/kl"] == pytest.approx(0, abs=1e-4)


def test_a_record_error_is_a_user_error():
    """So the command line shows it as one line."""
    assert issubclass(RecordError, UserError)
