"""Our losses and advantages are TRL's, on ragged batches, in float64: the same loss, the same gradients.

TRL's own trainers do everything but sampling and scoring: masks, advantages, old and reference log-probabilities of the
policy that sampled, the correction of another engine's. Then the weights move, so that ratios leave 1, and the losses
of both are compared.
"""

import copy
import functools
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from examples.callbacks.reference_sync import ReferenceSync
from lightning_cgrpo import CISPO, SAPO, ConstrainedGRPO, Objective, Optimization
from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.grpo.advantages import GDPO, LeaveOneOut, ScalarizedAdvantages, ScalarizedRewards
from lightning_cgrpo.grpo.sampling_correction import SamplingCorrection
from lightning_cgrpo.objective.group_statistics import group_statistics
from lightning_cgrpo.objective.objective import Components
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.samplers.generation import GenerationSampler
from lightning_cgrpo.tasks.task import Task
from tests.policies.small_policies import loaded

TEMPERATURE, LONGEST = 0.7, 9
PROMPTS = ("Tom has", "How many apples are left in the box?", "A")
LENGTHS = ((9, 1, 4, 6), (2, 9, 5, 3), (7, 7, 1, 9))
"""Of the answers; those of length 9, and one of length 7, were cut short."""
GROUPS, GROUP_SIZE = len(LENGTHS), len(LENGTHS[0])


@dataclass
class Batch:
    """What both trainers are given, as their samplers would."""

    folder: str
    rollouts: Rollouts
    prompts: list[list[int]]
    answers: list[list[int]]
    rewards: torch.Tensor
    """``[N, J]``, NaN where a reward does not apply."""


@pytest.fixture(scope="module")
def trl():
    import trl

    return trl


@pytest.fixture(scope="module", autouse=True)
def float64():
    """Weights of steps, too."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    folder = str(make_tiny_model(tmp_path_factory.mktemp("trl") / "model", hidden_size=32))
    policy = load(folder)
    random = torch.Generator().manual_seed(0)
    mask = torch.arange(LONGEST) < torch.tensor(LENGTHS)[..., None]
    actions = torch.randint(3, 300, mask.shape, generator=random)
    truncated = torch.tensor(LENGTHS) == LONGEST
    truncated[2, 0] = True
    last = torch.tensor(LENGTHS)[..., None] - 1
    ends = torch.where(truncated[..., None], actions.gather(-1, last), policy.stop_tokens[0])
    actions = torch.where(mask, actions.scatter(-1, last, ends), policy.pad_token)
    ids, prompt_mask = policy.read_prompts(PROMPTS).values()
    rewards = torch.randn(GROUPS * GROUP_SIZE, 3, generator=random)
    rewards[:, 1] = (rewards[:, 1] > 0.5).double()
    rewards[2, 2] = rewards[9, 2] = torch.nan
    rewards[4:8, 2] = 3.0  # a group without variance
    rollouts = Rollouts(actions, mask, {"prompt_ids": ids, "prompt_mask": prompt_mask}, info={"truncated": truncated})
    exact = policy(policy.examples(rollouts)).log_probs.detach().view(mask.shape)
    rollouts.sampling_log_probs = exact + 0.8 * torch.randn(mask.shape, generator=random)
    rollouts.sampling_log_probs[0, 0, 2] = torch.nan
    prompts = [prompt for prompt in kept(ids, prompt_mask) for _ in range(GROUP_SIZE)]
    return Batch(folder, rollouts, prompts, kept(actions.flatten(0, 1), mask.flatten(0, 1)), rewards)


def kept(values, mask):
    """Those of each row where the mask is."""
    return [row[own].tolist() for row, own in zip(values, mask, strict=True)]


def load(folder):
    """A copy of the policy in float64, far from uniform."""
    return copy.deepcopy(spread_out(folder))


@functools.cache
def spread_out(folder):
    policy = loaded(folder, temperature=TEMPERATURE, dtype="float64")
    spread(policy.model, 3)
    return policy


@torch.no_grad()
def spread(model, factor):
    for parameter in model.parameters():
        parameter.mul_(factor)


@torch.no_grad()
def moved(model, by, seed):
    """Every weight moves by that share of its size, the same in every copy."""
    random = torch.Generator().manual_seed(seed)
    for _, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=random)
        parameter += by * parameter.abs().mean() * noise


SETTINGS = {
    "per_device_train_batch_size": GROUPS * GROUP_SIZE, "num_generations": GROUP_SIZE, "temperature": TEMPERATURE,
    "max_completion_length": LONGEST, "use_cpu": True, "bf16": False, "gradient_checkpointing": False,
    "report_to": "none", "num_iterations": 2,  # old log-probabilities are not those of the pass with gradients
}  # fmt: skip


def make_theirs(trl, batch, tmp_path, kind="GRPO", rewards=1, vllm=False, **options):
    """A trainer of TRL's in which sampling and scoring return the batch."""
    import datasets
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(batch.folder, dtype=torch.float64)
    spread(model, 3)
    config = getattr(trl, f"{kind}Config")(output_dir=str(tmp_path), **SETTINGS | options)
    trainer = getattr(trl, f"{kind}Trainer")(
        model,
        reward_funcs=[lambda completions, **_: [0.0] * len(completions)] * rewards,
        args=config,
        train_dataset=datasets.Dataset.from_dict({"prompt": list(PROMPTS)}),
        processing_class=transformers.AutoTokenizer.from_pretrained(batch.folder),
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    if trainer.ref_model is not None:
        trainer.ref_model.double().load_state_dict(model.state_dict())
        moved(trainer.ref_model, 0.3, seed=1)
    if vllm:
        trainer.use_vllm = True
    texts = [""] * len(batch.answers)
    reported = kept(batch.rollouts.sampling_log_probs.flatten(0, 1), batch.rollouts.mask.flatten(0, 1))
    sampled = [[None if number != number else number for number in row] for row in reported]
    generated = {
        "GRPO": (batch.prompts, batch.answers, None, texts, sampled if vllm else None, {}, None, None),
        "RLOO": (batch.prompts, batch.answers, texts),
    }
    trainer._generate = lambda prompts: copy.deepcopy(generated[kind])
    trainer._calculate_rewards = lambda *_: batch.rewards[:, :rewards].clone()
    return trainer


def their_batch(trainer):
    return trainer._generate_and_score_completions([{"prompt": text} for text in PROMPTS for _ in range(GROUP_SIZE)])


def loss_of_theirs(trainer, inputs):
    moved(trainer.model, 0.05, seed=2)
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in trainer.model.named_parameters()}


class Unscored(Task):
    """Advantages are given."""

    signals = {"x": "number"}  # noqa: RUF012

    def score(self, prompts, rollouts):
        raise NotImplementedError


def loss_of_ours(batch, advantages, pieces=1, sampled=False, **options):
    policy = load(batch.folder)
    parts = policy, GenerationSampler(max_new_tokens=8), Unscored(), Objective("x"), torch.optim.SGD
    module = ConstrainedGRPO(*parts, optimization=Optimization(**options), group_size=GROUP_SIZE)
    module.configure_model()
    if module.reference is not None:
        moved(module.reference.model, 0.3, seed=1)
    rollouts = batch.rollouts if sampled else copy.copy(batch.rollouts)
    if not sampled:
        rollouts.sampling_log_probs = None
    steps = module.policy_steps
    examples, _ = steps.examples(rollouts, advantages.view(GROUPS, GROUP_SIZE))
    if module.reference is not None:
        examples.targets["reference_log_probs"] = steps.values(module.reference, examples)
    examples.targets["old_log_probs"] = steps.values(policy, examples)
    moved(policy.model, 0.05, seed=2)
    clipped = []
    total = 0.0
    for rows in torch.arange(len(examples)).tensor_split(pieces):
        terms = steps.loss_terms(examples, rows, None, {}, {})
        terms.loss.backward()
        total += terms.loss.item()
        clipped.append(float(terms.clip_fraction))
    ratios = policy(examples).log_probs.detach() - examples.targets["old_log_probs"]
    assert ratios[examples.mask].abs().max() > 0.5, "Expected ratios that leave the bounds."
    return total, {name: p.grad for name, p in policy.model.named_parameters()}, sum(clipped)


def assert_same(ours, theirs):
    assert ours[0] == pytest.approx(theirs[0], rel=1e-6, abs=1e-6)
    largest = max(float(gradient.abs().max()) for gradient in theirs[1].values())
    assert largest > 0.01
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-6, atol=1e-6 * largest)


KL = {"beta": 0.2, "use_bias_correction_kl": False}
CORRECTED = {"beta": 0.2, "use_bias_correction_kl": True}
SEQUENCE = {"importance_sampling_level": "sequence"}
TRUNCATED = {"mask_truncated_completions": True, **KL}
TOKENS = {"aggregation": "token_mean"}
RATIO = {"sequence_ratio": True}
MASKED = {"kl_weight": 0.2, "mask_truncated": True}
LOSSES = {
    "grpo": ({"loss_type": "grpo"}, {}),
    "dapo": ({"loss_type": "dapo"}, TOKENS),
    "bnpo": ({"loss_type": "bnpo"}, TOKENS),
    "dr_grpo": ({"loss_type": "dr_grpo"}, {"aggregation": "constant", "max_length": LONGEST}),
    "clip-higher": (
        {"loss_type": "dapo", "epsilon": 0.1, "epsilon_high": 0.4},
        {**TOKENS, "clip_low": 0.1, "clip_high": 0.4},
    ),
    "two-sided": ({"loss_type": "grpo", "delta": 1.3}, {"clip_limit": 1.3}),
    "sequence": (
        {"loss_type": "grpo", **SEQUENCE, "epsilon": 0.02, "epsilon_high": 0.03},
        {**RATIO, "clip_low": 0.02, "clip_high": 0.03},
    ),
    "sequence, tokens": ({"loss_type": "dapo", **SEQUENCE, "epsilon": 0.02}, {**RATIO, **TOKENS, "clip_low": 0.02}),
    "luspo": (
        {"loss_type": "luspo", **SEQUENCE, "epsilon": 0.02},
        {**RATIO, "clip_low": 0.02, "aggregation": "sequence_sum"},
    ),
    "cispo": ({"loss_type": "cispo", "epsilon_high": 1.2}, {"surrogate": CISPO(1.2), **TOKENS}),
    "sapo": ({"loss_type": "sapo"}, {"surrogate": SAPO()}),
    "kl": ({"loss_type": "grpo", **KL}, {"kl_weight": 0.2}),
    "kl, corrected": ({"loss_type": "dapo", **CORRECTED}, {"kl_weight": 0.2, "correct_kl": True, **TOKENS}),
    "kl, corrected, sequence": (
        {"loss_type": "grpo", **CORRECTED, **SEQUENCE},
        {"kl_weight": 0.2, "correct_kl": True, **RATIO},
    ),
    "entropy": ({"loss_type": "dapo", "entropy_coef": 0.1}, {**TOKENS, "entropy_weight": 0.1}),
    "truncated": ({"loss_type": "grpo", **TRUNCATED}, MASKED),
    "truncated, tokens": ({"loss_type": "dapo", **TRUNCATED}, {**MASKED, **TOKENS}),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradients(name, trl, batch, tmp_path):
    """In one pass, and in micro-batches, whose padding is of another length."""
    options, ours = LOSSES[name]
    trainer = make_theirs(trl, batch, tmp_path, **{"beta": 0.0, **options})
    inputs = their_batch(trainer)
    theirs = loss_of_theirs(trainer, inputs)
    got = loss_of_ours(batch, inputs["advantages"], **ours)
    if name == "cispo":  # their value has the log-probability in the place of the log-ratio
        theirs = (got[0], theirs[1])
    else:
        assert theirs[0] != 0
    assert_same(got, theirs)
    if name != "sapo":
        assert got[2] > 0, "Expected the bounds to act."
    assert_same(loss_of_ours(batch, inputs["advantages"], pieces=5, **ours), theirs)


@pytest.mark.parametrize(
    ("mode", "low", "high"),
    [
        *((mode, 0.9, 1.5) for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")),
        *(("token_mask", 0.9, 1e6), ("sequence_truncate", None, 1.5)),
    ],
)
def test_sampling_mismatch(mode, low, high, trl, batch, tmp_path):
    """The KL is not weighted, and neither is a step of which the engine reports nothing."""
    bounds = {"vllm_importance_sampling_clip_max": high, "vllm_importance_sampling_clip_min": low}
    options = {"loss_type": "dapo", "vllm_importance_sampling_mode": mode, **bounds, **KL}
    trainer = make_theirs(trl, batch, tmp_path, vllm=True, **options)
    inputs = their_batch(trainer)
    own = inputs["completion_mask"].bool()
    ratios = inputs["importance_sampling_ratio"].expand(own.shape)[own]
    assert len(ratios.unique()) > 2 or "sequence" in mode, "Expected ratios on both sides of a bound."
    theirs = loss_of_theirs(trainer, inputs)
    level, bound = mode.split("_")
    correction = SamplingCorrection(high, low or 0.0, masked=bound == "mask", sequence=level == "sequence")
    ours = {**TOKENS, "kl_weight": 0.2, "sampling": correction}
    assert_same(loss_of_ours(batch, inputs["advantages"], sampled=True, **ours), theirs)
    with pytest.raises(AssertionError):
        assert_same(loss_of_ours(batch, inputs["advantages"], **ours), theirs)


def their_advantages(trl, batch, tmp_path, **options):
    return their_batch(make_theirs(trl, batch, tmp_path, beta=0.0, **options))["advantages"].view(GROUPS, GROUP_SIZE)


def components(batch, count):
    values = batch.rewards[:, :count].T.reshape(count, GROUPS, GROUP_SIZE)
    return Components(values.nan_to_num(), ~values.isnan())


def test_grpo_advantages(trl, batch, tmp_path):
    """Theirs divide by the sample standard deviation plus 1e-4."""
    theirs = their_advantages(trl, batch, tmp_path)
    data = components(batch, 1)
    sample, population = (data.values[0].std(-1, correction=n, keepdim=True) for n in (1, 0))
    theirs = theirs * (sample + 1e-4) / population
    for estimator in (ScalarizedAdvantages("group"), ScalarizedRewards()):
        ours = estimator(batch.rollouts, group_statistics(data), torch.ones(1))
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


def test_advantages_scaled_by_the_batch(trl, batch, tmp_path):
    """Theirs divide by the standard deviation plus 1e-4."""
    theirs = their_advantages(trl, batch, tmp_path, rewards=2, reward_weights=[0.5, 2.0], scale_rewards="batch")
    data, weights = components(batch, 2), torch.tensor([0.5, 2.0])
    std = torch.einsum("j,jbg->bg", weights.to(data.values.dtype), data.values).std()
    estimator, statistics = ScalarizedRewards(scale="batch"), group_statistics(data)
    ours = estimator(batch.rollouts, statistics, weights)
    torch.testing.assert_close(ours, theirs * (std + 1e-4) / std, rtol=1e-6, atol=1e-9)
    mixed = (estimator.effective_weights(statistics, weights)[..., None] * statistics.standardized).sum(0)
    torch.testing.assert_close(mixed.to(theirs.dtype), ours)


def test_gdpo_advantages(trl, batch, tmp_path):
    """With rewards that do not apply, and a group without variance."""
    weights = [0.5, 2.0, 1.0]
    options = {"rewards": 3, "multi_objective_aggregation": "normalize_then_sum", "reward_weights": weights}
    theirs = their_advantages(trl, batch, tmp_path, **options)
    ours = GDPO()(batch.rollouts, group_statistics(components(batch, 3)), torch.tensor(weights))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


def test_leave_one_out_advantages(trl, batch, tmp_path):
    """TRL's RLOO, and without standardization its GRPO, which is Dr. GRPO's up to (G - 1) / G."""
    ours = LeaveOneOut()(batch.rollouts, group_statistics(components(batch, 2)), torch.tensor([0.5, 2.0]))
    options, share = {"rewards": 2, "reward_weights": [0.5, 2.0]}, (GROUP_SIZE - 1) / GROUP_SIZE
    for factor, kind in ((1, {"kind": "RLOO"}), (share, {"scale_rewards": "none"})):
        theirs = their_advantages(trl, batch, tmp_path, **kind, **options)
        torch.testing.assert_close(factor * ours, theirs, rtol=1e-6, atol=1e-9)


def test_reference_sync(trl):
    """One mixing of weights."""
    from trl.trainer.callbacks import SyncRefModelCallback

    torch.manual_seed(0)
    policy, theirs = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)
    module = SimpleNamespace(policy=policy, reference=copy.deepcopy(theirs))
    SyncRefModelCallback._sync_target_model(policy, theirs, 0.6)
    ReferenceSync(2).on_train_batch_end(SimpleNamespace(global_step=4), module, None, None, 0)
    for one, other in zip(module.reference.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)
