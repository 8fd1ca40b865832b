"""Constrained GRPO in TRL's `GRPOTrainer`; needs TRL."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lightning_cgrpo.core.distributed import rank_zero_warn, replicated
from lightning_cgrpo.core.errors import (
    MissingExtraError,
    UserError,
    expect_instances,
    expect_kinds,
    install_command,
    kind_of,
)
from lightning_cgrpo.core.prompts.fingerprints import prompt_fingerprint
from lightning_cgrpo.core.rollout import PromptGroups, Signal
from lightning_cgrpo.grpo.advantages import ScalarizedAdvantages
from lightning_cgrpo.grpo.constrained_advantages import ConstrainedAdvantages, as_signals
from lightning_cgrpo.multipliers.controller import Controller
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.subsets import columns_read
from lightning_cgrpo.trl.tables import RateTables

if find_spec("trl") is None:
    raise MissingExtraError(f"Expected TRL to be installed, but it is not, try {install_command('trl')}.")

STATE = "lightning_cgrpo"
"""Key of the dual's state in TRL's ``trainer_state.json``."""


BUILT_IN = {
    "tokens": "def tokens(completion_ids, **_): return [float(len(ids)) for ids in completion_ids]",
    "truncated": "which returns 1.0 where completion_ids ends without the tokenizer's end token, and 0.0 elsewhere",
    "length": "such as minus the number of tokens by max_completion_length",
}
"""Signals of `FunctionTask` without a function of the user's, and how to write them for TRL."""


class Lagrangian(TrainerCallback):
    """Gives a `GRPOTrainer` the advantages of Constrained GRPO, with weights that its rates of violation move.

    The signals are the trainer's reward functions, by name; None does not apply. The objective weighs and bounds them.
    Sampling, loss, optimizer, logs and checkpoints stay TRL's:

        1. TRL samples a generation and calls the reward functions.
        2. `ConstrainedAdvantages` replaces TRL's advantages, and the dual takes a step.
        3. TRL takes all optimizer steps of the generation.

    Evaluations measure rates and move nothing. TRL's logs get ``rate/*`` (or ``mean/*``), ``weight/*`` and
    ``threshold/*``; ``reward`` is the objective's reward, and ``rewards/*`` are as the functions return them.
    Checkpoints of the trainer hold the dual's state. A resume between two generations is exact; TRL itself draws a
    generation again if it resumes within.

    Args:
        trainer: a `GRPOTrainer` before `train`. It keeps this object as a callback.
        objective: reward and constraints, on reward functions by name. A reward model is named by its directory.
        controller: of the multipliers, by default `DampedAscent`.
        scale: of `ScalarizedAdvantages`, in the place of ``scale_rewards``.

    Raises:
        UserError: the objective and the trainer don't fit, or a setting of the trainer asks for other advantages.
    """

    def __init__(
        self,
        trainer: Any,
        objective: Objective,
        controller: Controller | None = None,
        scale: Literal["pooled", "group"] = "pooled",
    ) -> None:
        expect_instances(trainer=trainer)
        expect_kinds(objective=(objective, Objective))
        if controller is not None:
            expect_kinds(controller=(controller, Controller))
        check_trainer(trainer)
        check_names(trainer.reward_func_names, objective)
        self.trainer = trainer
        self.objective = objective
        self.advantages = ConstrainedAdvantages(objective, controller, ScalarizedAdvantages(scale))
        self.tables = RateTables(objective)
        self._prompts: Sequence[Any] = ()
        self._rewards: Tensor | None = None
        """Rewards ``[N, F]`` of all processes, in the order of the prompts."""
        # TRL logs the objective's reward as `reward`. Advantages don't depend on these weights.
        weights = [objective.rewards.get(name, 0.0) for name in trainer.reward_func_names]
        trainer.reward_weights = torch.tensor(weights, dtype=torch.float32)
        # TRL has no hook between rewards and advantages.
        self._calculate_rewards = self.trainer._calculate_rewards
        self._generate_and_score = self.trainer._generate_and_score_completions
        self.trainer._calculate_rewards = self.calculate_rewards
        self.trainer._generate_and_score_completions = self.generate_and_score
        trainer.add_callback(self)

    # ------------------------------------------------------------------ a generation

    def calculate_rewards(self, inputs: Any, prompts: Sequence[Any], *arguments: Any, **named: Any) -> Tensor:
        """TRL's rewards ``[N, F]`` of all processes, unchanged and remembered with this process's prompts."""
        rewards: Tensor = self._calculate_rewards(inputs, prompts, *arguments, **named)
        self._prompts = prompts
        self._rewards = rewards
        return rewards

    def generate_and_score(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's generation with the advantages of Constrained GRPO. Collective."""
        # TRL samples the answers and calls the reward functions.
        output: dict[str, Any] = self._generate_and_score(inputs)
        trains: bool = self.trainer.model.training
        signals = self.signals(inputs, trains)
        answered = self.answered_prompts(output) if trains else None
        # Every process has the rewards of all processes, so sums over the processes would count answers repeatedly.
        with replicated():
            self.log(signals, trains)
            if answered is not None:
                advantages = self._train_step(signals, *answered)  # [N]
            else:
                advantages = self.advantages.evaluate(signals).flatten()  # [N]
        # This process's rows of all processes' advantages.
        local = output["advantages"]
        start = self.trainer.accelerator.process_index * len(local)
        output["advantages"] = advantages[start : start + len(local)].to(local)
        # The table of completions shows the latest rows.
        shown = self.trainer._logs["advantages"]
        for _ in range(min(len(shown), len(advantages))):
            shown.pop()
        shown.extend(advantages.tolist())
        return output

    def _train_step(self, signals: dict[str, Signal], prompts: PromptGroups, lengths: Tensor) -> Tensor:
        """Advantages ``[N]`` of all processes; then the dual's step, and its state for the next checkpoint."""
        self.measure(signals, prompts, lengths)
        advantages = self.advantages.estimate(signals).flatten()
        self.advantages.step(signals)
        self.save()
        return advantages

    def signals(self, inputs: list[dict[str, Any]], trains: bool) -> dict[str, Signal]:
        """Signals ``[B, G]`` of all processes by reward function, and those of the answers that count."""
        assert self._rewards is not None
        trainer = self.trainer
        group_size: int = trainer.num_generations if trains else trainer.num_generations_eval
        measured: dict[str, Tensor | Signal] = {}
        for column, name in enumerate(trainer.reward_func_names):
            measured[name] = self._rewards[:, column].view(-1, group_size)  # [B, G]
        prompts = PromptGroups(torch.arange(len(self._rewards) // group_size), self.columns(inputs, group_size))
        return self.objective.made(as_signals(measured), prompts)

    def columns(self, inputs: list[dict[str, Any]], group_size: int) -> dict[str, list[Any]]:
        """Columns of all processes' prompts that constraints read. Collective."""
        from accelerate.utils import gather_object

        names: set[str] = set()
        for constraint in self.objective.constraints.values():
            names.update(columns_read(constraint))
        columns: dict[str, list[Any]] = {}
        for name in sorted(names):
            if name in inputs[0]:
                # A row for each answer; the answers to a prompt follow each other.
                columns[name] = gather_object([row[name] for row in inputs])[::group_size]
        return columns

    def answered_prompts(self, output: dict[str, Any]) -> tuple[PromptGroups, Tensor]:
        """The prompts B and the lengths ``[B, G]`` of the answers of all processes. Collective.

        A prompt has its images, and what an environment said at its reset, since TRL gives these to reward functions.
        """
        from accelerate.utils import gather_object

        group_size: int = self.trainer.num_generations
        fingerprints_here = [prompt_fingerprint({"prompt": prompt}) for prompt in self._prompts]
        fingerprints = gather_object(fingerprints_here)[::group_size]  # one for each prompt
        prompts = PromptGroups(torch.arange(len(fingerprints)), {"fingerprint": fingerprints})
        lengths = self.trainer.accelerator.gather(output["completion_mask"].sum(-1))  # [N]
        return prompts, lengths.view(-1, group_size)

    def measure(self, signals: dict[str, Signal], prompts: PromptGroups, lengths: Tensor) -> None:
        """Keep the rates of a generation for the table at the end; print the table before training."""
        longest: int = self.trainer.max_completion_length
        measured = self.tables.add(signals, prompts, lengths, longest)
        before_training = self.trainer.state.global_step == 0 and self.advantages.updates == 0
        if before_training and self.trainer.is_world_process_zero():
            self.tables.begin(measured, signals, self.trainer.num_generations, longest)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        with replicated():
            if self.trainer.is_world_process_zero():
                self.tables.end()

    def log(self, signals: dict[str, Signal], trains: bool) -> None:
        """Add to TRL's metrics, which TRL averages from log to log."""
        metrics = self.trainer._metrics["train" if trains else "eval"]
        for tag, rate in self.advantages.rates(signals).items():
            metrics[tag].append(rate)
        if trains:
            for name, weight in self.advantages.weights.items():
                metrics[f"weight/{name}"].append(weight)
            for name, threshold in self.advantages.thresholds.items():
                metrics[f"threshold/{name}"].append(threshold)

    # ------------------------------------------------------------------ checkpoints

    def save(self) -> None:
        """Put the dual's state where TRL's next checkpoint finds it."""
        file = io.BytesIO()
        torch.save(self.advantages.state_dict(), file)
        # The file is JSON, in which a tensor would lose its type.
        self.trainer.state.stateful_callbacks[STATE] = {"torch": base64.b64encode(file.getvalue()).decode()}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Continue from the checkpoint that TRL resumes, and check schedules of thresholds."""
        # The dual takes a step for each generation, which serves this many backward passes.
        passes_per_generation = self.trainer.args.steps_per_generation * self.trainer.num_iterations
        generations = state.max_steps * args.gradient_accumulation_steps / passes_per_generation
        dual = self.advantages.dual
        dual.targets.check_schedules(dual.constraints, generations)
        if state.global_step == 0:
            return
        states: Any = state.stateful_callbacks  # by key, whatever its type says
        if STATE not in states:
            rank_zero_warn(
                f"The checkpoint has no multipliers: the run resumes at step {state.global_step} with those that "
                f"{type(self.advantages.controller).__name__} starts with."
            )
            return
        saved = base64.b64decode(states[STATE]["torch"])
        self.advantages.load_state_dict(torch.load(io.BytesIO(saved), map_location="cpu", weights_only=True))


def check_trainer(trainer: Any) -> None:
    """Refuse other trainers, and settings that ask for other advantages."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    if not isinstance(trainer, GRPOTrainer):
        raise UserError(f"Expected trainer to be TRL's GRPOTrainer, but got {kind_of(trainer)}.")
    if any(isinstance(callback, Lagrangian) for callback in trainer.callback_handler.callbacks):
        raise UserError("Expected one Lagrangian for a trainer, but it has one already, try one objective for both.")
    config: Any = trainer.args
    if config.reward_weights is not None:
        raise UserError(
            f"Expected no reward_weights, because the objective weighs the rewards, but got "
            f"{config.reward_weights}, try Objective({{name: weight}}, ...)."
        )
    if trainer.multi_objective_aggregation != "sum_then_normalize":
        raise UserError(
            "Expected multi_objective_aggregation to be sum_then_normalize (the default), because advantages are those "
            f"of Constrained GRPO, but got {trainer.multi_objective_aggregation}, try removing it."
        )
    if trainer.scale_rewards != "group":
        raise UserError(
            "Expected scale_rewards to be group (the default), because Lagrangian scales each component, but got "
            f"{trainer.scale_rewards}, try removing it, or Lagrangian's scale."
        )
    if trainer.state.global_step > 0:
        raise UserError(
            f"Expected a trainer before train(), but it has taken {trainer.state.global_step} steps without the "
            "objective, try Lagrangian(trainer, objective) before trainer.train()."
        )


def check_names(names: list[str], objective: Objective) -> None:
    """Refuse an objective that names no reward function, or two; warn of functions that train nothing."""
    for name in objective.signal_names:
        if name in BUILT_IN and name not in names:
            raise UserError(
                f"Expected signals that are reward functions of the trainer, but got '{name}', which ConstrainedGRPO "
                f"measures by itself, try a reward function of this name, {BUILT_IN[name]}."
            )
    objective.check_signals(dict.fromkeys(names, "any"))
    used = objective.signal_names
    for name, number in Counter(names).items():
        if number > 1 and name in used:
            raise UserError(
                f"Expected one reward function '{name}', but got {number}, try functions with names of their own."
            )
    unused = [name for name in names if name not in used]
    if unused:
        rank_zero_warn(f"Reward functions that the objective doesn't name are logged and train nothing: {unused}.")
