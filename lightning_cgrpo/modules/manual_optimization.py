"""ManualOptimization: optimizer, schedule, gradient accumulation, clipping and steps of a policy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import LBFGS, Optimizer, SparseAdam
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiplicativeLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    StepLR,
)

from lightning_cgrpo.core.errors import UserError, first_line, kind_of
from lightning_cgrpo.core.rollout import Examples
from lightning_cgrpo.grpo.minibatches import LRSchedulerCallable, OptimizerCallable, micro_batches, token_batches
from lightning_cgrpo.modules.first_steps import FirstSteps, check_trained_dtypes
from lightning_cgrpo.policies.pass_memory import OCCUPYING, fitting_tokens
from lightning_cgrpo.policies.policy import Policy, Reference
from lightning_cgrpo.policies.sharding import equal_passes, is_sharded, total_norm

OF_THE_RATE_ALONE = (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    MultiplicativeLR,
    PolynomialLR,
    StepLR,
)
"""Schedules that change no other setting of the optimizer."""
RATES = {"lr", "max_lr", "min_lr"}
CYCLED = {"betas", "momentum", "max_momentum", "base_momentum"}
"""Settings that schedules in cycles change, too, and perhaps a schedule of the user's own."""
LARGEST = torch.finfo(torch.float32).max


class ManualOptimization:
    """Optimizer and schedule of a policy under Lightning's manual optimization, where an update may take several steps.

    Args:
        module: holds this object and the policy, which it trains.
        optimizer: function of parameters.
        lr_scheduler: function of the optimizer; steps once per update.

    Raises:
        UserError: the module's `policy` is no policy, or `optimizer` no function.
    """

    def __init__(
        self,
        module: LightningModule,
        optimizer: OptimizerCallable,
        lr_scheduler: LRSchedulerCallable | None,
    ) -> None:
        policy = module.policy
        if not isinstance(policy, Policy):
            raise UserError(
                f"Expected argument `policy` to be a Policy, but got {kind_of(policy)}, try "
                "CausalLMPolicy(NAME), with the name or directory of a language model."
            )
        if isinstance(optimizer, Optimizer):
            raise UserError(
                "Expected optimizer to be a function that makes one, since the weights are loaded later, but got a "
                f"{type(optimizer).__name__}, try lambda parameters: {type(optimizer).__name__}(parameters, lr=1e-4)."
            )
        if not callable(optimizer):
            raise UserError(
                f"Expected optimizer to be a function that makes one, but got {optimizer!r:.60}, try "
                "lambda parameters: torch.optim.AdamW(parameters, lr=1e-4)."
            )
        self.module = module
        self.policy = policy
        self.make_optimizer = optimizer
        self.make_scheduler = lr_scheduler
        self.fitting_tokens: int | None = None
        """Tokens of a pass by the GPU's memory, which checkpoints keep; None where nothing is known."""
        self.first_steps = FirstSteps(policy)
        self._settings: list[dict[str, Any]] = []

    @property
    def trainer(self) -> Trainer:
        return self.module.trainer

    @property
    def device(self) -> torch.device:
        return self.module.device

    # ------------------------------------------------------------------ set-up

    def configure(self) -> Any:
        """The optimizer and its schedule, as Lightning's `configure_optimizers` returns them."""
        check_trained_dtypes(self.policy)
        with _errors_name_argument("optimizer"):
            optimizer = self.make_optimizer([weight for weight in self.policy.parameters() if weight.requires_grad])
        _check_optimizer(optimizer)
        scheduler = None
        if self.make_scheduler is not None:
            with _errors_name_argument("lr_scheduler"):
                scheduler = self.make_scheduler(optimizer)
        self._settings = []
        for group in optimizer.param_groups:
            self._settings.append({key: value for key, value in group.items() if key != "params"})
        self._check_finite(optimizer)
        if scheduler is None:
            return optimizer
        if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceLROnPlateau):
            raise UserError(f"Expected a schedule that follows from the update, but got {type(scheduler).__name__}.")
        return [optimizer], [scheduler]

    @staticmethod
    def _check_finite(optimizer: Optimizer) -> None:
        """Refuse settings, as declared or as the schedule makes them, with which a step would lose the weights."""
        for group in optimizer.param_groups:
            for key, value in group.items():
                if isinstance(value, float) and not abs(value) <= LARGEST:
                    raise UserError(
                        f"Expected finite settings of the optimizer, but got {key}={value}, try a finite "
                        f"model.optimizer.{key}, or another model.lr_scheduler."
                    )

    def start(self) -> None:
        """Give a restored optimizer its settings, and compare its schedule with the length of the run."""
        self._take_settings()
        scheduler = self.schedule(self.optimizer.optimizer)
        updates = self.trainer.estimated_stepping_batches
        if isinstance(scheduler, CosineAnnealingLR) and scheduler.T_max < updates:
            rank_zero_warn(
                f"The learning rate rises again after update {scheduler.T_max}: model.lr_scheduler.T_max is smaller "
                f"than the {updates} updates of this run."
            )
        if isinstance(scheduler, OneCycleLR) and updates > scheduler.total_steps:
            raise UserError(
                f"Expected model.lr_scheduler.total_steps to be at least {updates}, the updates of this run, but got "
                f"{scheduler.total_steps}, try that, or trainer.max_steps={scheduler.total_steps}; a resumed run has "
                "the schedule of its first part."
            )

    def _take_settings(self) -> None:
        """Give a restored optimizer the configuration's settings, instead of the checkpoint's.

        A schedule refuses another learning rate, because the schedule resumes with its own.
        """
        if self.trainer.ckpt_path is None:
            return
        optimizer = self.optimizer.optimizer
        schedule = self.schedule(optimizer)
        if schedule is None:
            kept_from_checkpoint = {"initial_lr"}
        elif isinstance(schedule, OF_THE_RATE_ALONE):
            kept_from_checkpoint = RATES
        else:
            kept_from_checkpoint = RATES | CYCLED
        for group, settings in zip(optimizer.param_groups, self._settings, strict=True):
            for key in settings.keys() - kept_from_checkpoint:
                value = settings.get(key)
                saved = group.get(key)
                if value == saved:
                    continue
                if key == "initial_lr":
                    raise UserError(
                        f"Expected model.optimizer.lr to be as in the checkpoint, whose schedule began with {saved:g}, "
                        f"but it would begin with {value:g}, try the same, or model.lr_scheduler=null."
                    )
                rank_zero_info(f"The optimizer resumes with {key} {value}, not with the checkpoint's {saved}.")
                group[key] = value

    @property
    def learning_rate(self) -> float:
        return float(self.optimizer.optimizer.param_groups[0]["lr"])

    @property
    def optimizer(self) -> LightningOptimizer:
        """The policy's optimizer, the first; a critic has the second."""
        optimizers: Any = self.module.optimizers()
        return optimizers[0] if isinstance(optimizers, list) else optimizers

    def schedule(self, optimizer: Optimizer) -> LRScheduler | None:
        """The schedule of an optimizer, if any."""
        schedules: list[Any] = [config.scheduler for config in self.trainer.lr_scheduler_configs]
        return next((schedule for schedule in schedules if schedule.optimizer is optimizer), None)

    # ------------------------------------------------------------------ passes

    def choose_tokens(self) -> None:
        """Choose the tokens of a pass by the GPU's memory, once in a run. Collective."""
        if self.fitting_tokens is not None:
            return
        trained = [weight for weight in self.module.parameters() if weight.requires_grad]
        self.fitting_tokens = fitting_tokens(self.policy, trained)
        if self.fitting_tokens is None:
            return
        rank_zero_info(
            f"A training pass has at most {self.fitting_tokens:,} tokens, by the GPU's free memory, unless a "
            "micro-batch is set. Checkpoints keep the number."
        )
        if getattr(self.policy, "gradient_checkpointing", False):
            tokens = fitting_tokens(self.policy, trained, recomputes=False)
            if tokens is not None and tokens >= OCCUPYING:
                rank_zero_info(
                    f"Without gradient_checkpointing, a pass would have {tokens:,} tokens, and would compute no layer "
                    "twice, try policy.gradient_checkpointing=false in a new run."
                )

    def split_rows(self, examples: Examples, rows: Tensor, size: int | None, tokens: int | None = None) -> list[Tensor]:
        """Rows of each pass: at most `size`, or of at most `tokens`, or of as many tokens as `choose_tokens` chose."""
        if size is not None:
            return micro_batches(rows, size)
        tokens = tokens or self.fitting_tokens
        if tokens is None:
            return [rows]
        return token_batches(examples, rows, tokens, self.policy.shares_prompts)

    # ------------------------------------------------------------------ steps

    def accumulate(
        self, pieces: Sequence[Tensor], loss: Callable[[Tensor], Tensor], beside: Reference | None = None
    ) -> None:
        """Sum gradients over a minibatch's pieces; processes synchronize at the last piece only.

        Args:
            pieces: rows from `micro_batches`; empty if all rows are on other processes.
            loss: computes the loss of a piece that isn't empty.
            beside: a reference that `loss` calls before the policy.
        """
        pieces = equal_passes(self.policy, pieces, self.device)
        wrapped = self.trainer.strategy.model
        for number, piece in enumerate(pieces):
            is_last = number == len(pieces) - 1
            if isinstance(wrapped, DistributedDataParallel) and not is_last:
                synchronization: AbstractContextManager[None] = wrapped.no_sync()
            else:
                synchronization = nullcontext()
            with synchronization:
                # Other processes wait for this process's gradients, also if the piece is empty.
                # No variable holds the loss, because its graph would stay in memory during the next pass.
                self.module.manual_backward(loss(piece) if len(piece) else self._no_loss(beside))

    def clipped_norm(self, max_norm: float | None) -> Tensor | None:
        """The gradients' norm, then scaled down to `max_norm`; None if a gradient isn't finite."""
        norm = total_norm(self.policy)
        if not bool(norm.isfinite()):
            return None
        if max_norm is not None:
            nn.utils.clip_grads_with_norm_(self.policy.parameters(), max_norm, norm)
        return norm

    def take_step(self, last: bool = True) -> None:
        """Step the optimizer; the last step of an update counts as Lightning's, and steps the schedule."""
        optimizer = self.optimizer
        before = self.first_steps.before(optimizer.optimizer)
        # Lightning counts steps of its wrapper as global_step, which counts updates here.
        stepped = optimizer if last else optimizer.optimizer
        try:
            stepped.step()
        except KeyError as error:
            if self.trainer.ckpt_path is None:
                raise
            raise UserError(
                f"Expected the optimizer's state in the checkpoint to hold {error}, which the optimizer's settings now "
                "need, try the settings of the checkpoint's run, or --ckpt_path=null for a new run."
            ) from error
        self.first_steps.after(before)
        optimizer.zero_grad()
        if not last:
            return
        schedule = self.schedule(optimizer.optimizer)
        if schedule is not None:
            schedule.step()
            self._check_finite(optimizer.optimizer)

    def _no_loss(self, beside: Reference | None) -> Tensor:
        """A loss of 0 that gives every trained weight a gradient of 0."""
        if not is_sharded(self.policy):
            trained = [weight for weight in self.policy.parameters() if weight.requires_grad]
            return torch.stack([weight.sum() * 0 for weight in trained]).sum()
        # A pass gathers sharded weights from all processes, which run the same passes.
        if beside is not None:
            with torch.no_grad():
                beside(self.policy.placeholder())
        output = self.policy(self.policy.placeholder())
        return (output.log_probs.sum() + output.entropy.sum()) * 0


def _check_optimizer(optimizer: Optimizer) -> None:
    """Refuse optimizers that compute the loss themselves, or take sparse gradients alone."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    needs_closure = closure is not None and closure.default is closure.empty
    if isinstance(optimizer, LBFGS) or needs_closure:
        raise UserError(
            f"Expected model.optimizer to take steps by gradients alone, but got {type(optimizer).__name__}, which "
            "computes the loss again in each step, try torch.optim.AdamW."
        )
    if isinstance(optimizer, SparseAdam):
        raise UserError(
            "Expected model.optimizer to take dense gradients, but got SparseAdam, which takes sparse gradients alone, "
            "try torch.optim.AdamW."
        )


@contextmanager
def _errors_name_argument(argument: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        raise UserError(f"Expected model.{argument} to be valid, but got: {first_line(error)}.") from error
