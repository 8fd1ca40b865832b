"""An update of a language model on GSM8K, worked out by hand."""

import math
import statistics

import pytest
import torch

from lightning_cgrpo import ConstrainedGRPO, Constraint, GSM8KTask, Objective, Optimization, ScalarizedAdvantages
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.datamodules import GSM8KDataModule
from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.samplers.sampler import Sampler
from tests.gsm8k_records import write_records
from tests.memory import Memory, flat
from tests.quiet import quiet_trainer

MAX_TOKENS, GROUP = 48, 8


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", hidden_size=32, layers=1)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Twelve questions to train on, five to test."""
    return write_records(tmp_path_factory.mktemp("data") / "gsm8k")


class Scripted(Sampler):
    """Half of each group answers right; two give a wrong number, one a word without the format, one never ends."""

    def rollout(self, policy, prompts, group_size, noise):
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
            policy.read_prompts(prompts.columns["prompt"]),
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
        estimator=ScalarizedAdvantages("group"),
        optimization=Optimization(**{"kl_weight": 0.04, **optimization}),
        group_size=GROUP,
    )
    memory, duals = Memory(), LagrangianCallback(SoftmaxAdam(lr=0.02))
    quiet_trainer(duals, memory, precision=precision, max_steps=updates, logger=memory).fit(
        module, GSM8KDataModule(str(data), prompts_per_update=3, val_prompts=0)
    )
    assert not any(tag.startswith("faults/") for update in memory.updates.values() for tag in update)
    return module, memory.updates, memory


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
    assert torch.equal(flat(module.reference), flat(initial))
    assert not torch.equal(flat(module.policy), flat(initial))
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
    torch.testing.assert_close(*map(flat, results), rtol=0, atol=1e-12)


@pytest.mark.parametrize("pieces", [{"micro_batch_size": 5}, {"micro_batch_tokens": 40}], ids=["answers", "tokens"])
@pytest.mark.parametrize("minibatch_size", [None, 8])
def test_micro_batches_do_not_change_the_result(model, records, minibatch_size, pieces):
    """Of 24 answers in one or three minibatches."""
    common = {"epochs": 2, "minibatch_size": minibatch_size, "max_grad_norm": 0.5}
    whole, metrics, _ = train(model, records, **common)
    pieces, in_pieces, _ = train(model, records, **pieces, **common)
    # The norms of these models are computed in float32, whatever the dtype.
    torch.testing.assert_close(flat(whole.policy), flat(pieces.policy), rtol=0, atol=1e-8)
    for update in (0, 1):
        for name in ("loss", "kl", "entropy", "clip_fraction", "grad_norm"):
            tag = f"policy/{name}"
            assert in_pieces[update][tag] == pytest.approx(metrics[update][tag], rel=1e-6, abs=1e-9), tag
