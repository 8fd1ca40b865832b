"""Whole updates against the same algorithm in plain PyTorch: one answer at a time, SGD by hand, and no padding.

Steps of a world and answers of a language model; one minibatch and several, in pieces; the policy's own KL and entropy
as terms of the loss and as constraints; advantages of groups, and of a critic that clips and has a schedule.
"""

import copy
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_cgrpo import CausalLMPolicy, ConstrainedGRPO, Constraint, EnvironmentSampler, Objective, Optimization
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.core.rollout import Examples, PromptGroups, Rollouts, Signal
from lightning_cgrpo.datamodules import GridworldDataModule, PromptDataModule
from lightning_cgrpo.grpo.critic.critic_advantages import ScalarizedGAE
from lightning_cgrpo.grpo.critic.language_critic import LanguageCritic
from lightning_cgrpo.grpo.critic.mlp_critic import MLPCritic
from lightning_cgrpo.grpo.critic.value_learning import ValueLearning
from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.objective.signals import SignalKind
from lightning_cgrpo.policies.categorical_mlp import CategoricalMLP
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.samplers.sampler import Sampler
from lightning_cgrpo.tasks.gridworld import Gridworld
from lightning_cgrpo.tasks.task import Task
from tests.generated import Batch, Run
from tests.loops.advantages import pooled_advantages
from tests.loops.counts import Values, answers, own_steps
from tests.loops.dual import dual_steps
from tests.loops.step_advantages import critic_advantages, generalized
from tests.memory import Memory, flat
from tests.quiet import quiet_trainer

PROMPTS, GROUP, STEPS, EPOCHS, UPDATES = 3, 4, 5, 2, 2
LR, DUAL_LR, CLIP, LIMIT = 0.3, 0.05, 0.2, 0.3
CRITIC_LR, GAMMA, LAMBDA, VALUE_CLIP = 0.2, 0.9, 0.8, 0.02
RATE = {"even": Constraint(at_most=0.3)}
OWN_SIGNALS = {
    "drift": Constraint(mean_at_most=0.001, signal="kl"),
    "kl": Constraint(mean_at_most=0.002),
    "entropy": Constraint(mean_at_least=2.0),
}
CASES = {
    "rate": (RATE, {}),
    "rate, k3 and entropy": (RATE, {"kl_weight": 0.1, "entropy_weight": 0.05, "max_grad_norm": LIMIT}),
    "own signals, exact KL": ({**RATE, **OWN_SIGNALS}, {"kl_weight": 0.1, "exact_kl": True}),
}
"""Constraints, and terms of the loss."""
At = tuple[int, int]


class Behavior(Task):
    """A reward of whole answers, and an indicator of steps."""

    signals: Mapping[str, SignalKind] = {"brief": "number", "even": "indicator"}

    def score(self, prompts: PromptGroups, rollouts: Rollouts) -> dict[str, Signal]:
        return {"brief": Signal(-rollouts.lengths.double()), "even": Signal((rollouts.actions % 2 == 0).double())}


class RandomTokens(Sampler):
    """Answers of different lengths, by an engine that reports no log-probabilities."""

    calls = 0

    def rollout(self, policy: CausalLMPolicy, prompts: PromptGroups, group_size: int, noise: object) -> Rollouts:
        self.calls += 1
        random = torch.Generator().manual_seed(self.calls)
        mask = torch.arange(STEPS) < torch.randint(1, STEPS + 1, (len(prompts), group_size, 1), generator=random)
        tokens = torch.randint(3, 300, mask.shape, generator=random)
        tokens = torch.where(mask, tokens, policy.pad_token)
        return Rollouts(tokens, mask, policy.read_prompts(prompts.columns["prompt"]))


@dataclass
class Reference:
    """Copies of the networks, which follow the recorded rollouts."""

    language: bool
    minibatch: int | None
    loss: dict[str, float]
    objective: Objective
    policy: nn.Module
    critic: nn.Module | None
    runs: list[Run] = field(default_factory=list)
    logged: list[dict[str, float]] = field(default_factory=list)
    """Terms of the last update's minibatches."""

    def __post_init__(self) -> None:
        self.initial = copy.deepcopy(self.policy)
        self.logits = torch.full((len(self.objective.weight_names),), 0.02, dtype=torch.float64, requires_grad=True)
        self.dual = torch.optim.Adam([self.logits], lr=DUAL_LR, maximize=True)

    @property
    def weights(self) -> Tensor:
        return self.logits.detach().softmax(-1)

    def update(self, number: int, output: dict) -> None:
        # Units are laid out as the loops read them; NaN until the first epoch has measured them.
        rollouts = output["rollouts"]
        empty = rollouts.actions.flatten(0, 1) if self.language else rollouts.actions[rollouts.mask]
        targets = {name: torch.full(empty.shape, torch.nan, dtype=torch.float64) for name in ("kl", "entropy")}
        examples = Examples({}, empty, empty, empty, targets=targets)
        batch = Batch(output["prompts"], rollouts, output["signals"], examples)
        run = Run(self.objective, [batch], self.weights)
        self.runs.append(run)
        predicted = {at: self.values(batch, *at).detach() for at in answers(batch)} if self.critic else {}
        advantages = self.advantages(run, batch, predicted)
        self.train_policy(number, batch, advantages)
        if self.critic is not None:
            self.train_critic(number, run, batch, predicted)
        *_, violations = dual_steps(self.objective, [run.batches[0] for run in self.runs], 1, 0.0, standard=False)
        weights = self.logits.softmax(-1)
        (gradient,) = torch.autograd.grad((weights[1:] * torch.tensor(list(violations.values()))).sum(), self.logits)
        self.logits.grad = gradient
        self.dual.step()

    def advantages(self, run: Run, batch: Batch, predicted: dict[At, Tensor]) -> Values:
        """By step."""
        if self.critic is not None:
            return critic_advantages(run, batch, predicted, GAMMA, LAMBDA, standardized=True)
        *_, of_answers = pooled_advantages(self.runs)
        return {(*at, t): of_answers[at] for at in of_answers for t in own_steps(batch, *at)}

    # ------------------------------------------------------------------ networks, which read one answer at a time

    def log_probs(self, policy: nn.Module, batch: Batch, b: int, g: int) -> Tensor:
        """Of all actions, ``[steps, actions]``."""
        steps = own_steps(batch, b, g)
        if not self.language:
            return policy.net(batch.rollouts.inputs["observations"][b, g, steps].double()).log_softmax(-1)
        return self.outputs(policy, batch.rollouts, b, g, steps).log_softmax(-1)

    def taken(self, policy: nn.Module, batch: Batch, b: int, g: int) -> Tensor:
        """Of the answer's own actions, ``[steps]``."""
        actions = batch.rollouts.actions[b, g, own_steps(batch, b, g)]
        return self.log_probs(policy, batch, b, g).gather(-1, actions[:, None])[:, 0]

    def values(self, batch: Batch, b: int, g: int) -> Tensor:
        """The critic's predictions before the steps, ``[steps, components]``."""
        steps = own_steps(batch, b, g)
        if not self.language:
            return self.critic.network.net(batch.rollouts.inputs["observations"][b, g, steps].double())
        return self.critic.heads(self.outputs(self.critic.network, batch.rollouts, b, g, steps))

    @staticmethod
    def outputs(policy: CausalLMPolicy, rollouts: Rollouts, b: int, g: int, steps: list[int]) -> Tensor:
        """A language model's outputs before each token of an answer."""
        prompt = rollouts.inputs["prompt_ids"][b][rollouts.inputs["prompt_mask"][b].bool()]
        tokens = torch.cat([prompt, rollouts.actions[b, g, steps]])
        return policy.network(input_ids=tokens[None]).logits[0, len(prompt) - 1 : -1]

    # ------------------------------------------------------------------ optimizer steps

    def minibatches(self, number: int, batch: Batch) -> Iterator[tuple[int, dict[At, list[int]], float]]:
        """The epoch, the steps by answer (as positions among the answer's own), and the share of all units."""
        if self.language:
            units = [(at, list(range(len(own_steps(batch, *at))))) for at in answers(batch)]
        else:
            units = [(at, [i]) for at in answers(batch) for i in range(len(own_steps(batch, *at)))]
        for epoch in range(EPOCHS):
            order = np.arange(len(units))
            parts = 1
            if self.minibatch is not None:
                random = np.random.default_rng((0, 3, number, epoch))
                # Answers to a prompt stay together.
                together = GROUP if self.language else 1
                groups = random.permutation(len(units) // together)
                order = (groups[:, None] * together + np.arange(together)).flatten()
                parts = -(-len(groups) // (self.minibatch // together))
                order = order.reshape(-1, together)
            for part in np.array_split(order, parts):
                steps: dict[At, list[int]] = {}
                for unit in part.flatten():
                    at, positions = units[unit]
                    steps.setdefault(at, []).extend(positions)
                yield epoch, steps, part.size / len(units)

    def train_policy(self, number: int, batch: Batch, advantages: Values) -> None:
        sampled = {at: self.taken(self.policy, batch, *at).detach() for at in answers(batch)}
        penalties = dict.fromkeys(("kl", "entropy"), 0.0)
        for name, weight in zip(self.objective.constrained, self.weights[1:].tolist(), strict=True):
            if name != "even":
                penalties["entropy" if name == "entropy" else "kl"] += -weight if name == "entropy" else weight
        all_steps = int(batch.rollouts.mask.sum())
        self.logged = []
        for epoch, minibatch, share in self.minibatches(number, batch):
            gain = torch.zeros((), dtype=torch.float64)
            logged = dict.fromkeys(("kl", "entropy", "clip_fraction"), 0.0)
            for (b, g), positions in minibatch.items():
                steps = own_steps(batch, b, g)
                every = self.log_probs(self.policy, batch, b, g)
                reference = self.log_probs(self.initial, batch, b, g).detach()
                actions = batch.rollouts.actions[b, g, steps][:, None]
                log_probs, of_reference = (x.gather(-1, actions)[:, 0] for x in (every, reference))
                kl, entropy = (every.exp() * (every - reference)).sum(-1), -(every.exp() * every).sum(-1)
                if epoch == 0:
                    self.record(batch, b, g, positions, kl=kl, entropy=entropy)
                ratio = (log_probs - sampled[b, g]).exp()[positions]
                advantage = torch.tensor([advantages[b, g, steps[i]] for i in positions], dtype=torch.float64)
                value = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
                distance = of_reference - log_probs
                estimate = kl if "exact_kl" in self.loss else distance.exp() - distance - 1
                terms = self.loss.get("kl_weight", 0.0) * estimate + penalties["kl"] * kl
                terms = terms - (self.loss.get("entropy_weight", 0.0) - penalties["entropy"]) * entropy
                # Answers of a language model weigh alike, and so do steps of a world.
                weight = 1 / (PROMPTS * GROUP * len(steps)) if self.language else 1 / all_steps
                gain = gain + weight / share * (value - terms[positions]).sum()
                # An advantage of 0 may have a residue in these loops.
                clipped = ((ratio - 1) * advantage.sign() > CLIP) & (advantage.abs() > 1e-9)
                shown = {"kl": estimate[positions], "entropy": entropy[positions], "clip_fraction": clipped}
                for name, values in shown.items():
                    logged[name] += weight / share * float(values.sum())
            norm = descend(self.policy, -gain, LR, self.loss.get("max_grad_norm", math.inf))
            self.logged.append({**logged, "loss": -gain.item(), "grad_norm": norm})

    def record(self, batch: Batch, b: int, g: int, positions: list[int], **measured: Tensor) -> None:
        """Keep what the policy computed at some steps of an answer."""
        steps = own_steps(batch, b, g)
        before = sum(len(own_steps(batch, *at)) for at in answers(batch) if at < (b, g))
        for name, values in measured.items():
            for i in positions:
                place = (b * GROUP + g, steps[i]) if self.language else before + i
                batch.examples.targets[name][place] = values[i].detach()

    def train_critic(self, number: int, run: Run, batch: Batch, predicted: dict[At, Tensor]) -> None:
        advantages = generalized(run, batch, predicted, GAMMA, LAMBDA)
        all_steps = int(batch.rollouts.mask.sum())
        for _, minibatch, share in self.minibatches(number, batch):
            loss = torch.zeros((), dtype=torch.float64)
            for (b, g), positions in minibatch.items():
                values, before = self.values(batch, b, g)[positions], predicted[b, g][positions]
                steps = [own_steps(batch, b, g)[i] for i in positions]
                returns = before + torch.tensor([[part[b, g, t] for part in advantages] for t in steps]).double()
                near = before + (values - before).clamp(-VALUE_CLIP, VALUE_CLIP)
                errors = torch.maximum((values - returns) ** 2, (near - returns) ** 2)
                loss = loss + 0.5 * errors.sum() / all_steps / share
            descend(self.critic, loss, CRITIC_LR * 0.5**number)


def descend(network: nn.Module, loss: Tensor, lr: float, limit: float = math.inf) -> float:
    """One step of SGD, along a gradient of at most that length; returns the gradient's own."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter -= lr * min(1.0, limit / (norm + 1e-6)) * gradient
    return norm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    make_tiny_model(folder / "model", hidden_size=16, layers=1)
    prompts = ("Tom has", "How many apples are left in the box?", "A", "Two and two")
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))
    return folder


def halving(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


# Of every two of these parts all pairs of values, for steps and for language each.
@pytest.mark.parametrize(
    ("several", "critic", "case"),
    [
        *((several, several, case) for case in ("rate", "own signals, exact KL") for several in (False, True)),
        *((several, not several, "rate, k3 and entropy") for several in (False, True)),
    ],
)
@pytest.mark.parametrize("language", [False, True], ids=["steps", "language"])
def test_updates_equal_the_reference(language, several, critic, case, folder) -> None:
    torch.manual_seed(0)
    constraints, loss = CASES[case]
    policy = CausalLMPolicy(str(folder / "model"), dtype="float64") if language else CategoricalMLP(30, 5, [8])
    minibatch = None if not several else GROUP if language else 20
    estimator = None
    if critic:
        estimator = ScalarizedGAE(
            LanguageCritic(CausalLMPolicy(str(folder / "model"), dtype="float64")) if language else MLPCritic(30, (8,)),
            lambda parameters: torch.optim.SGD(parameters, lr=CRITIC_LR),
            halving,
            GAMMA,
            LAMBDA,
            learning=ValueLearning(EPOCHS, minibatch, clip=VALUE_CLIP),
        )
    module = ConstrainedGRPO(
        policy,
        RandomTokens() if language else EnvironmentSampler(Gridworld(STEPS)),
        Behavior(),
        Objective("brief", constraints),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=LR),
        estimator=estimator,
        optimization=Optimization(
            epochs=EPOCHS,
            minibatch_size=minibatch,
            micro_batch_size=5 if several else None,
            micro_batch_tokens=30 if language and not several else None,
            aggregation="sequence_mean" if language else "token_mean",
            **loss,
        ),
        group_size=GROUP,
    )
    module.configure_model()
    if critic:
        estimator.critic.load(2)
    copies = copy.deepcopy(policy).double(), copy.deepcopy(estimator.critic).double() if critic else None
    reference = Reference(language, minibatch, loss, module.objective, *copies)
    memory, duals = Memory(), LagrangianCallback(SoftmaxAdam(DUAL_LR))
    data = GridworldDataModule(PROMPTS, train_prompts=50, size=4, lava=2)
    if language:
        data = PromptDataModule(str(folder / "prompts.jsonl"), PROMPTS, val_prompts=0)
    quiet_trainer(duals, memory, logger=memory, precision="64-true", max_steps=UPDATES).fit(module, data)
    # The norms of these language models are computed in float32.
    close = {"rtol": 1e-5, "atol": 1e-6 if language else 1e-9}
    for number in range(UPDATES):
        reference.update(number, memory.outputs[number])
        torch.testing.assert_close(memory.parameters[number], flat(reference.policy), **close)
        torch.testing.assert_close(memory.weights[number], reference.weights, **close)
        logged = memory.updates[number]
        assert ("policy/kl" in logged) == bool(loss), "the reference is there if it is needed"
        for name in reference.logged[0]:
            mean = np.mean([terms[name] for terms in reference.logged])
            assert logged.get(f"policy/{name}", mean) == pytest.approx(mean, rel=1e-4, abs=1e-6), name
    if critic:
        torch.testing.assert_close(flat(estimator.critic), flat(reference.critic), **close)
