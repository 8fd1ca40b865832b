"""PolicySteps: the optimizer steps of an update, on answers with advantages."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import Examples, Rollouts, Signal
from lightning_cgrpo.grpo.losses import aggregation_weights, grpo_loss
from lightning_cgrpo.grpo.minibatches import (
    Optimization,
    Share,
    counted,
    loss_mask,
    micro_batches,
    minibatches,
    partition,
    put_rows,
    token_batches,
    with_targets,
)
from lightning_cgrpo.grpo.own_signals import RECORDED, own_signals
from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.modules.update_report import UpdateReport
from lightning_cgrpo.policies.policy import Reference
from lightning_cgrpo.policies.precision import casts_weights, keep_cast
from lightning_cgrpo.policies.sharding import is_sharded


def check_sampling(sampled: Tensor, trained: Tensor, mask: Tensor, name: str) -> None:
    """Compare log-probabilities of a rollout with those of a training pass by the same weights.

    Raises:
        UserError: the policy differs in training, so that ratios begin away from 1.
    """
    if not len(mask):  # no prompts on this process
        return
    gap = float(torch.where(mask, sampled - trained, 0).abs().max())
    # Autocast rounds both passes to half precision, and TF32 of GPUs to its digits, by kernels that follow the shapes.
    exact = sampled.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    if not gap <= (1e-3 if exact else 0.2):
        raise UserError(
            f"Expected the {name} to give an action the same log-probability in training as in sampling, but got a "
            f"difference of {gap:.2g}, because dropout or batch normalization acts in training, try a network without."
        )


class PolicySteps(RolloutModule):
    """Takes an update's optimizer steps by the surrogate loss, with a reference and the policy's own signals.

    A subclass sets `optimization`, `reference` (None until it is needed), and the buffer ``weights [1 + K]``.
    """

    optimization: Optimization
    weights: Tensor
    reference: Reference | None
    _skipped_update = -2
    _sampling_checked = False

    def configure_model(self) -> None:
        """Load the policy and the reference."""
        self.load_policy()
        for module in self.policy.modules():
            if isinstance(module, _DropoutNd):
                module.p = 0.0  # Answers are sampled without dropout, and ratios compare the same policy.
        if self.needs_reference and self.reference is None:
            self.reference = self.policy.reference()
            takes_reference = "reference" in inspect.signature(self.policy.forward).parameters
            if not takes_reference and (self.optimization.exact_kl or "kl" in self._policy_signals):
                raise UserError(
                    f"Expected {type(self.policy).__name__}.forward to take a reference for the exact KL, but got one "
                    "without, try exact_kl: false, and no constraint on kl."
                )
            if isinstance(self.reference, nn.Module) and casts_weights(self._trainer):
                keep_cast(self.reference)

    @property
    def needs_reference(self) -> bool:
        """True if the loss or a constraint contains the KL to the reference."""
        return bool(self.optimization.kl_weight) or "kl" in self._policy_signals

    @property
    def _policy_signals(self) -> list[str]:
        """The policy's own signals that are constrained or monitored."""
        return sorted(set(self.objective.policy_signals.values()))

    def _optimize(self, rollouts: Rollouts, advantages: Tensor, update: int, report: UpdateReport) -> dict[str, Signal]:
        """Take all optimizer steps, and return the policy's own signals."""
        options = self.optimization
        penalties = self.objective.penalties(self.weights)
        examples, share = self._sampled_examples(rollouts, advantages)
        cuts = [partition(share, options.minibatch_size, self.seed, update, epoch) for epoch in range(options.epochs)]
        recorded = [name for name in RECORDED if name in self._policy_signals]
        if self.reference is not None and not options.exact_kl and "kl" not in recorded:
            examples.targets["reference_log_probs"] = self._values(self.reference, examples)
        elif self.reference is not None:
            recorded.append("reference_log_probs")
        epochs = [list(minibatches(share, cut, self.device)) for cut in cuts]
        # With a single minibatch, the first pass has the policy that sampled, so its log-probabilities are recorded.
        record = "old_log_probs" not in examples.targets and len(epochs[0]) == 1
        if record:
            examples.targets["old_log_probs"] = torch.zeros_like(examples.targets["weights"])
        elif "old_log_probs" not in examples.targets:
            examples.targets["old_log_probs"] = self._values(self.policy, examples)
        # Language models compare at loading. A resumed run was compared, and rounding shows in narrow actions by now.
        if rollouts.log_probs is not None and not self._sampling_checked and self.trainer.ckpt_path is None:
            self._sampling_checked = True
            trained = self._values(self.policy, examples)
            check_sampling(examples.targets["old_log_probs"], trained, examples.mask, type(self.policy).__name__)
        examples.targets.update((name, torch.zeros_like(examples.targets["weights"])) for name in recorded)
        signals: dict[str, Tensor] = {}
        remaining = sum(len(parts) for parts in epochs)
        for parts in epochs:
            # The exact KL compares both passes' distributions, which aren't kept.
            exact = options.exact_kl or "kl" in examples.targets or "kl" in penalties
            beside = self.reference if exact else None
            for rows, scale in parts:
                report.next_minibatch()

                def loss(
                    piece: Tensor, scale: float = scale, record: bool = record, beside: Reference | None = beside
                ) -> Tensor:
                    return self._loss(examples, piece, scale, record, report, penalties, beside)

                self.accumulate(self._pieces(examples, rows), loss, beside)
                self._clip(update, report)
                remaining -= 1
                self.take_step(last=not remaining)
            record = False
            # Of the first epoch.
            signals |= {name: examples.targets.pop(name) for name in RECORDED if name in examples.targets}
        report.add_sampling(examples)
        if not self._policy_signals:
            return {}
        measured = {**examples.targets, **signals}
        return own_signals(self._policy_signals, replace(examples, targets=measured), rollouts)

    def _sampled_examples(self, rollouts: Rollouts, advantages: Tensor) -> tuple[Examples, Share]:
        """This process's answers, with the log-probabilities that the sampler reported, and their share. Collective."""
        options = self.optimization
        if advantages.dim() == 2:
            advantages = advantages[..., None].expand(rollouts.mask.shape)  # [B, G, T]
        reported = {"old_log_probs": rollouts.log_probs, "sampling_log_probs": rollouts.sampling_log_probs}
        units, mask = self.policy.examples(rollouts), loss_mask(rollouts, options.mask_truncated)
        counts, totals = counted(units, mask)
        examples = with_targets(
            units,
            rollouts,
            advantages=advantages,
            weights=aggregation_weights(mask, options.aggregation, options.max_length, totals),
            **{name: values for name, values in reported.items() if values is not None},
        )
        if options.sequence_ratio and examples.mask.dim() == 1:
            raise UserError(
                "Expected a policy that trains on whole answers for sequence_ratio, but got "
                f"{type(self.policy).__name__}, which trains on single steps, try sequence_ratio: false."
            )
        return examples, Share.of(examples, self.group_size, counts)

    def policy_signals(self, rollouts: Rollouts) -> dict[str, Signal]:
        names = self._policy_signals
        if not names:
            return {}
        nothing = torch.zeros_like(rollouts.mask[..., 0], dtype=torch.float32)
        examples = self._sampled_examples(rollouts, nothing)[0]
        for name in RECORDED:
            if name in names:
                beside = self.reference if name == "kl" else None
                examples.targets[name] = self._values(self.policy, examples, name, beside)
        return own_signals(names, examples, rollouts)

    def _values(
        self, model: Reference, examples: Examples, name: str = "log_probs", beside: Reference | None = None
    ) -> Tensor:
        """Log-probabilities (or another output) of all examples, without gradients, 0 in the padding."""
        out = torch.zeros_like(examples.targets["weights"])
        rows = torch.arange(len(examples), device=out.device)
        with torch.no_grad():
            for piece in self.passes(self._pieces(examples, rows)):
                if len(piece) or is_sharded(self.policy):
                    part = examples[piece] if len(piece) else self.policy.placeholder()
                    output = model(part) if beside is None else model(part, beside(part))
                    if len(piece):
                        put_rows(out, piece, torch.where(part.mask, getattr(output, name), 0))
        return out

    def _pieces(self, examples: Examples, rows: Tensor) -> list[Tensor]:
        """Rows of each pass."""
        tokens = self.optimization.micro_batch_tokens
        if tokens is None:
            return micro_batches(rows, self.optimization.micro_batch_size)
        return token_batches(examples, rows, tokens, self.policy.shares_prompts)

    def _loss(
        self,
        examples: Examples,
        piece: Tensor,
        scale: float,
        record: bool,
        report: UpdateReport,
        penalties: Mapping[str, Tensor],
        beside: Reference | None = None,
    ) -> Tensor:
        part = examples[piece]
        reference_log_probs = part.targets.get("reference_log_probs")
        if beside is None:
            output = self.policy(part)
        else:
            with torch.no_grad():
                reference = beside(part)
            reference_log_probs = torch.where(part.mask, reference.log_probs, 0)
            put_rows(examples.targets["reference_log_probs"], piece, reference_log_probs)
            output = self.policy(part, reference)
        old = part.targets["old_log_probs"]
        if record:
            old = torch.where(part.mask, output.log_probs.detach(), 0)
            put_rows(examples.targets["old_log_probs"], piece, old)
        for name in RECORDED:
            if name in examples.targets:
                put_rows(examples.targets[name], piece, torch.where(part.mask, getattr(output, name).detach(), 0))
        sampled, correction, ratios = part.targets.get("sampling_log_probs"), self.optimization.sampling, None
        if sampled is not None and correction is not None:
            ratios = correction.bounded(correction.ratios(old, sampled, part.mask))
        terms = grpo_loss(
            output.log_probs,
            old,
            part.targets["advantages"],
            part.targets["weights"],
            options=self.optimization,
            sampling_ratios=ratios,
            reference_log_probs=reference_log_probs,
            entropy=output.entropy,
            exact_kl=output.kl,
            penalties=penalties,
        )
        report.add_terms(terms, scale)
        return terms.loss * scale

    def _clip(self, update: int, report: UpdateReport) -> None:
        """Clip finite gradients; drop other gradients with a warning."""
        norm = self.clipped_norm(self.optimization.max_grad_norm)
        if norm is not None:
            report.grad_norms.append(norm)
            return
        report.skipped_steps += 1
        if self._skipped_update not in (update, update - 1):
            rank_zero_warn(
                f"The gradient of update {update} is not finite; its optimizer step is skipped, as are further "
                "such steps. The tag faults/skipped_steps counts them."
            )
        self._skipped_update = update
        for parameter in self.policy.parameters():
            parameter.grad = None
