"""PolicySteps: the optimizer steps of an update, on answers with advantages."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import Examples, Rollouts, Signal
from lightning_cgrpo.grpo.losses import LossTerms, aggregation_weights, grpo_loss
from lightning_cgrpo.grpo.minibatches import (
    Optimization,
    Share,
    count_units,
    loss_mask,
    minibatches,
    partition_units,
    put_rows,
    with_targets,
)
from lightning_cgrpo.grpo.own_signals import RECORDED, own_signals
from lightning_cgrpo.grpo.sampling_correction import sampling_sums
from lightning_cgrpo.modules.manual_optimization import ManualOptimization
from lightning_cgrpo.policies.policy import Reference
from lightning_cgrpo.policies.precision import keep_cast
from lightning_cgrpo.policies.sharding import equal_passes, is_sharded

POLICY_TERMS = ("loss", "kl", "entropy", "clip_fraction")
"""Terms of the loss that are logged."""


def check_sampling(sampled: Tensor, trained: Tensor, mask: Tensor, name: str) -> None:
    """Compare log-probabilities of a rollout with those of a training pass by the same weights.

    Raises:
        UserError: the policy differs in training, so that ratios begin away from 1.
    """
    if not len(mask):  # no prompts on this process
        return
    gap = float(torch.where(mask, sampled - trained, 0).abs().max())
    # Autocast rounds both passes to half precision, and TF32 of GPUs to its digits, by kernels that follow the shapes.
    is_exact = sampled.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    largest_gap = 1e-3 if is_exact else 0.2
    if not gap <= largest_gap:  # also if the gap is NaN
        raise UserError(
            f"Expected the {name} to give an action the same log-probability in training as in sampling, but got a "
            f"difference of {gap:.2g}, because dropout or batch normalization acts in training, try a network without."
        )


@dataclass
class StepsTaken:
    """Results of an update's optimizer steps on this process.

    Attributes:
        signals: the policy's own signals.
        terms: `POLICY_TERMS` of each minibatch.
        grad_norms: norms of the gradients, before clipping, of the steps with a finite gradient.
        skipped_steps: steps whose gradient was not finite.
        sampling: `sampling_sums`; none unless an engine reported log-probabilities.
    """

    signals: dict[str, Signal] = field(default_factory=dict)
    terms: list[dict[str, Tensor]] = field(default_factory=list)
    grad_norms: list[Tensor] = field(default_factory=list)
    skipped_steps: int = 0
    sampling: dict[str, Tensor] = field(default_factory=dict)


class PolicySteps:
    """Takes an update's optimizer steps by the surrogate loss, and measures the policy's own signals.

    Args:
        options: epochs, minibatches, clipping, KL and entropy.
        own_signals: names of the policy's own signals that constraints bound.
        group_size: answers per prompt (G).
        manual_optimization: of the trained policy; accumulates gradients, and steps the optimizer.
    """

    def __init__(
        self,
        options: Optimization,
        own_signals: Iterable[str],
        group_size: int,
        manual_optimization: ManualOptimization,
    ) -> None:
        self.policy = manual_optimization.policy
        self.options = options
        self.own_signals = sorted(set(own_signals))
        self.group_size = group_size
        self.manual_optimization = manual_optimization
        self._sampling_checked = False
        self._skipped_update = -2

    # ------------------------------------------------------------------ set-up

    @property
    def needs_reference(self) -> bool:
        """True if the loss or a constraint contains the KL to the reference."""
        return bool(self.options.kl_weight) or "kl" in self.own_signals

    def without_dropout(self) -> None:
        """Turn dropout off, because answers are sampled without it, and ratios compare the same policy."""
        for module in self.policy.modules():
            if isinstance(module, _DropoutNd):
                module.p = 0.0
            elif isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
                module.dropout = 0.0  # which their functions read

    def make_reference(self, casts_weights: bool) -> Reference:
        """The policy's reference.

        Args:
            casts_weights: a pass casts weights to half precision; those of the reference are cast once.

        Raises:
            UserError: the policy computes no exact KL, which the loss or a constraint contains.
        """
        reference = self.policy.reference()
        takes_reference = "reference" in inspect.signature(self.policy.forward).parameters
        if not takes_reference and (self.options.exact_kl or "kl" in self.own_signals):
            raise UserError(
                f"Expected {type(self.policy).__name__}.forward to take a reference for the exact KL, but got one "
                "without, try exact_kl: false, and no constraint on kl."
            )
        if isinstance(reference, nn.Module) and casts_weights:
            keep_cast(reference)
        return reference

    # ------------------------------------------------------------------ an update

    def take(
        self,
        rollouts: Rollouts,
        advantages: Tensor,
        reference: Reference | None,
        penalties: Mapping[str, Tensor],
        *,
        seed: int,
        update: int,
    ) -> StepsTaken:
        """Take all optimizer steps of an update. Collective.

        Args:
            advantages: ``[B, G]``, or ``[B, G, T]`` of steps.
            reference: of the KL; None if nothing contains it.
            penalties: coefficients of the policy's own signals in the loss, from `Objective.penalties`.
        """
        options = self.options
        examples, share = self.examples(rollouts, advantages)
        if options.micro_batch_size is None and options.micro_batch_tokens is None:
            self.manual_optimization.choose_tokens()

        # Each epoch cuts the units of all processes into minibatches.
        epochs = []
        for epoch in range(options.epochs):
            parts = partition_units(share, options.minibatch_size, seed, update, epoch)
            epochs.append(list(minibatches(share, parts, self.manual_optimization.device)))

        # Ratios need the log-probabilities of the policy that sampled, and the KL those of the reference.
        recording = self._prepare_targets(examples, reference, single_minibatch=len(epochs[0]) == 1)
        self._check_sampling(rollouts, examples)

        # A minibatch is an optimizer step: loss, gradients, clipping, step.
        taken = StepsTaken()
        steps_left = sum(len(epoch) for epoch in epochs)
        for number, minibatches_of_epoch in enumerate(epochs):
            recorded = recording if number == 0 else {}
            # The exact KL compares both passes' distributions, which aren't kept.
            exact_kl = options.exact_kl or "kl" in recorded or "kl" in penalties
            beside = reference if exact_kl else None
            for rows, scale in minibatches_of_epoch:
                terms = self._no_terms()
                loss = partial(self._loss, examples, scale, beside, penalties, recorded, terms)
                self.manual_optimization.accumulate(self._split_rows(examples, rows), loss, beside)
                norm = self.manual_optimization.clipped_norm(options.max_grad_norm)
                if norm is None:
                    self._drop_gradients(update)
                    taken.skipped_steps += 1
                else:
                    taken.grad_norms.append(norm)
                taken.terms.append(terms)
                steps_left -= 1
                self.manual_optimization.take_step(last=steps_left == 0)

        taken.sampling = sampling_sums(examples, options.sampling)
        if self.own_signals:
            recorded_examples = replace(examples, targets={**examples.targets, **recording})
            taken.signals = own_signals(self.own_signals, recorded_examples, rollouts)
        return taken

    def examples(self, rollouts: Rollouts, advantages: Tensor) -> tuple[Examples, Share]:
        """This process's answers, with the log-probabilities that the sampler reported, and their share. Collective."""
        options = self.options
        mask_BGT = loss_mask(rollouts, options.mask_truncated)
        advantages_BGT = advantages
        if advantages.dim() == 2:
            advantages_BGT = advantages[..., None].expand(rollouts.mask.shape)
        units = self.policy.examples(rollouts)
        counts, totals = count_units(units, mask_BGT)

        targets = {
            "advantages": advantages_BGT,
            "weights": aggregation_weights(mask_BGT, options.aggregation, options.max_length, totals),
        }
        if rollouts.log_probs is not None:
            targets["old_log_probs"] = rollouts.log_probs
        if rollouts.sampling_log_probs is not None:
            targets["sampling_log_probs"] = rollouts.sampling_log_probs
        examples = with_targets(units, rollouts, **targets)
        if options.sequence_ratio and examples.mask.dim() == 1:
            raise UserError(
                "Expected a policy that trains on whole answers for sequence_ratio, but got "
                f"{type(self.policy).__name__}, which trains on single steps, try sequence_ratio: false."
            )
        return examples, Share.of(examples, self.group_size, counts)

    def _prepare_targets(
        self, examples: Examples, reference: Reference | None, single_minibatch: bool
    ) -> dict[str, Tensor]:
        """Add the old and the reference's log-probabilities to the targets.

        Returns:
            Tensors into which the passes of the first epoch write outputs of the policy, by name. The policy is then
            the one that sampled: in the first epoch for entropy and KL, in a single minibatch for log-probabilities.
        """
        targets = examples.targets
        zeros = torch.zeros_like(targets["weights"])
        recording = {name: zeros.clone() for name in RECORDED if name in self.own_signals}
        if reference is not None:
            if self.options.exact_kl or "kl" in recording:  # the passes of training fill the zeros
                targets["reference_log_probs"] = zeros.clone()
            else:
                targets["reference_log_probs"] = self.values(reference, examples)
        if "old_log_probs" not in targets:
            if single_minibatch:  # both names share the tensor that its pass fills
                recording["log_probs"] = zeros.clone()
                targets["old_log_probs"] = recording["log_probs"]
            else:
                targets["old_log_probs"] = self.values(self.policy, examples)
        return recording

    def _check_sampling(self, rollouts: Rollouts, examples: Examples) -> None:
        """Compare training with sampling once; language models compare at loading.

        A resumed run was compared, and rounding shows in narrow actions by now.
        """
        resumed = self.manual_optimization.trainer.ckpt_path is not None
        if rollouts.log_probs is None or self._sampling_checked or resumed:
            return
        self._sampling_checked = True
        trained = self.values(self.policy, examples)
        check_sampling(examples.targets["old_log_probs"], trained, examples.mask, type(self.policy).__name__)

    def _no_terms(self) -> dict[str, Tensor]:
        return {name: torch.zeros((), device=self.manual_optimization.device) for name in POLICY_TERMS}

    def _loss(
        self,
        examples: Examples,
        scale: float,
        reference: Reference | None,
        penalties: Mapping[str, Tensor],
        recording: Mapping[str, Tensor],
        sums: dict[str, Tensor] | None,
        piece: Tensor,
    ) -> Tensor:
        """The loss of the rows `piece`, whose terms are added to `sums`."""
        terms = self.loss_terms(examples, piece, reference, penalties, recording)
        if sums is not None:
            for name in POLICY_TERMS:
                sums[name] += scale * getattr(terms, name).detach()
        return terms.loss * scale

    def loss_terms(
        self,
        examples: Examples,
        piece: Tensor,
        reference: Reference | None,
        penalties: Mapping[str, Tensor],
        recording: Mapping[str, Tensor],
    ) -> LossTerms:
        """The loss of the rows `piece` of the examples.

        Args:
            reference: computes beside the policy, for the exact KL; otherwise the targets have its log-probabilities.
            recording: tensors into which outputs of the policy are written, by name.
        """
        part = examples[piece]
        reference_log_probs = part.targets.get("reference_log_probs")
        if reference is None:
            output = self.policy(part)
        else:
            with torch.no_grad():
                reference_output = reference(part)
            reference_log_probs = torch.where(part.mask, reference_output.log_probs, 0)
            put_rows(examples.targets["reference_log_probs"], piece, reference_log_probs)
            output = self.policy(part, reference_output)

        old_log_probs = part.targets["old_log_probs"]
        for name, values in recording.items():
            recorded = torch.where(part.mask, getattr(output, name).detach(), 0)
            put_rows(values, piece, recorded)
            if name == "log_probs":
                old_log_probs = recorded

        sampling_log_probs = part.targets.get("sampling_log_probs")
        correction = self.options.sampling
        sampling_ratios = None
        if sampling_log_probs is not None and correction is not None:
            ratios = correction.ratios(old_log_probs, sampling_log_probs, part.mask)
            sampling_ratios = correction.bounded(ratios)

        return grpo_loss(
            output.log_probs,
            old_log_probs,
            part.targets["advantages"],
            part.targets["weights"],
            options=self.options,
            sampling_ratios=sampling_ratios,
            reference_log_probs=reference_log_probs,
            entropy=output.entropy,
            exact_kl=output.kl,
            penalties=penalties,
        )

    def _drop_gradients(self, update: int) -> None:
        """Drop gradients that are not finite, with a warning."""
        if self._skipped_update not in (update, update - 1):
            rank_zero_warn(
                f"The gradient of update {update} is not finite; its optimizer step is skipped, as are further "
                "such steps. The tag faults/skipped_steps counts them."
            )
        self._skipped_update = update
        for parameter in self.policy.parameters():
            parameter.grad = None

    # ------------------------------------------------------------------ values without gradients

    def measure(self, rollouts: Rollouts, reference: Reference | None) -> dict[str, Signal]:
        """The policy's own signals of answers that are not trained on. Collective."""
        if not self.own_signals:
            return {}
        no_advantages_BG = torch.zeros_like(rollouts.mask[..., 0], dtype=torch.float32)
        examples, _ = self.examples(rollouts, no_advantages_BG)
        for name in RECORDED:
            if name in self.own_signals:
                beside = reference if name == "kl" else None  # the exact KL compares both passes
                examples.targets[name] = self.values(self.policy, examples, name, beside)
        return own_signals(self.own_signals, examples, rollouts)

    def values(
        self, model: Reference, examples: Examples, name: str = "log_probs", beside: Reference | None = None
    ) -> Tensor:
        """Log-probabilities (or another output) of all examples, without gradients, 0 in the padding."""
        values = torch.zeros_like(examples.targets["weights"])
        rows = torch.arange(len(examples), device=values.device)
        with torch.no_grad():
            for piece in equal_passes(self.policy, self._split_rows(examples, rows), self.manual_optimization.device):
                if not len(piece) and not is_sharded(self.policy):
                    continue
                # Every process makes as many passes, because a sharded policy needs all processes in each.
                part = examples[piece] if len(piece) else self.policy.placeholder()
                output = model(part) if beside is None else model(part, beside(part))
                if len(piece):
                    put_rows(values, piece, torch.where(part.mask, getattr(output, name), 0))
        return values

    def _split_rows(self, examples: Examples, rows: Tensor) -> list[Tensor]:
        """Rows of each pass."""
        options = self.options
        return self.manual_optimization.split_rows(examples, rows, options.micro_batch_size, options.micro_batch_tokens)
