"""ChainPolicy: planners that sample their answers by a chain, with the log-probabilities of the chain's steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lightning_cgrpo.core.errors import UserError, expect
from lightning_cgrpo.core.paths import expand_path
from lightning_cgrpo.core.rollout import Examples, Rollouts
from lightning_cgrpo.policies.action_distributions import SMALLEST_DRAW
from lightning_cgrpo.policies.chains import DDIM, Chain
from lightning_cgrpo.policies.model_files import PACKAGED, PREFIX, fingerprint
from lightning_cgrpo.policies.policy import Origin, Policy, PolicyOutput

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class SampledChains:
    """Chains of N answers."""

    start: Tensor  # [N, D] state 0
    states: Tensor  # [N, K, D] states 1 to K; the last is the answer
    log_probs: Tensor  # [N, K] log-densities of the steps


class ChainPolicy(Policy):
    """Samples answers by a chain of Gaussian steps whose means come from any network.

    The steps of a chain take the place of an answer's tokens: each has a log-probability, a ratio and a KL, and
    clipping is per step. The first state is no step, because no weight moves its distribution.

    Args:
        net: maps states ``[M, D]``, their times ``[M]`` and contexts ``[M, ...]`` to outputs ``[M, D]``, which `chain`
            reads. Dropout is turned off; batch normalization is refused by the first update.
        size: numbers of an answer (D).
        chain: schedule and meaning of the outputs; by default `DDIM`.
        anchors: A answers; a chain then starts around one of them, drawn with equal chances, instead of around 0.
        weights: a folder with the network's `model.safetensors`, or ``packaged:NAME``; by default, those of `net`.
    """

    def __init__(
        self,
        net: nn.Module,
        size: int,
        chain: Chain | None = None,
        anchors: Sequence[Sequence[float]] | None = None,
        weights: str | None = None,
    ) -> None:
        super().__init__()
        expect(size >= 1, "size", "at least 1", size)
        self.net = net
        self.size = size
        self.weights = weights
        self.chain: Chain = DDIM() if chain is None else chain
        centers = torch.zeros(1, size)
        if anchors is not None:
            centers = torch.tensor(anchors, dtype=torch.get_default_dtype())
        expect(centers.shape[1:] == (size,), "anchors", f"rows of {size} numbers", list(centers.shape))
        expect(bool(centers.isfinite().all()), "anchors", "finite", anchors)
        # Not in checkpoints, because the configuration has them.
        self.register_buffer("anchors", centers, persistent=False)
        self._loaded = False

    anchors: Tensor

    def load(self) -> None:
        """Read the weights.

        Raises:
            UserError: no such weights, a damaged file, or those of another network.
        """
        if self._loaded or self.weights is None:
            return
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            if self.weights.startswith(PREFIX):
                folder = PACKAGED / self.weights.removeprefix(PREFIX)
            else:
                folder = expand_path(self.weights)
            self.net.load_state_dict(load_file(folder / WEIGHTS))
        except (OSError, RuntimeError, SafetensorError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"Expected weights to be a folder with {WEIGHTS} of a {type(self.net).__name__}, but got "
                f"'{self.weights}' ({reason}), try weights: null, or the network that the weights are of."
            ) from None
        self.origin = Origin(self.weights, str(folder.resolve()), fingerprint(folder))
        self._loaded = True

    # ------------------------------------------------------------------ sampling

    def draws(self) -> int:
        """Uniform draws that one answer takes: the anchor's, the first state's and the steps'."""
        return 1 + self.size * (1 + self.chain.steps)

    @torch.no_grad()
    def sample(self, context: Tensor, draws: Tensor) -> SampledChains:
        """Sample chains.

        Args:
            context: ``[N, ...]`` of the answers.
            draws: ``[N, draws()]`` in [0, 1).
        """
        count = len(draws)
        chain = self.chain
        # The first draw of an answer chooses its anchor; the others become Gaussian noise by the inverse of its
        # cumulative distribution.
        anchor = (draws[:, 0] * len(self.anchors)).long()  # [N]
        noise = torch.special.ndtri(draws[:, 1:].double().clamp(min=SMALLEST_DRAW)).to(self.anchors.dtype)
        noise = noise.view(count, 1 + chain.steps, self.size)  # [N, 1 + K, D]
        start = chain.answer_shares[0] * self.anchors[anchor] + chain.noise_shares[0] * noise[:, 0]
        states = [start]
        means = []
        for step in range(chain.steps):
            times = start.new_full((count,), chain.times[step])
            outputs = self._network_outputs(states[-1], times, context)
            means.append(chain.mean(states[-1], outputs, step))
            states.append(means[-1] + chain.stds[step] * noise[:, step + 1])
        sampled = torch.stack(states[1:], 1)
        return SampledChains(start, sampled, self._log_probs(torch.stack(means, 1), sampled))

    # ------------------------------------------------------------------ training

    def examples(self, rollouts: Rollouts) -> Examples:
        prompts, group_size, _ = rollouts.mask.shape
        return Examples(
            inputs={"start": rollouts.inputs["start"].flatten(0, 1)},
            actions=rollouts.actions.flatten(0, 1),
            mask=rollouts.mask.flatten(0, 1),
            group=torch.arange(prompts, device=rollouts.mask.device).repeat_interleave(group_size),
            shared={"context": rollouts.inputs["context"]},
        )

    def forward(self, examples: Examples, reference: PolicyOutput | None = None) -> PolicyOutput:
        """Log-densities of the steps ``[N, K]``, and their entropies, which the schedule fixes."""
        before = torch.cat([examples.inputs["start"][:, None], examples.actions[:, :-1]], 1)  # [N, K, D]
        count, steps = before.shape[:2]
        # Every step of every chain is a row of one pass.
        times = self.chain.schedule(before).times[:steps].expand(count, steps)
        context = examples.shared["context"][examples.group].repeat_interleave(steps, 0)
        outputs = self._network_outputs(before.flatten(0, 1), times.flatten(), context).view_as(before)
        means = self.chain.mean(before, outputs, slice(0, steps))
        stds = self.chain.schedule(means).stds[:steps]
        entropy = self.size * (stds.log() + 0.5 * math.log(2 * math.pi * math.e))
        kl = None
        if reference is not None:
            kl = ((means - reference.parameters[0]) / stds[:, None]).square().sum(-1) / 2
        log_probs = self._log_probs(means, examples.actions)
        return PolicyOutput(log_probs, entropy.expand(count, steps), parameters=(means,), kl=kl)

    def _network_outputs(self, states: Tensor, times: Tensor, context: Tensor) -> Tensor:
        """The network's outputs ``[M, D]``.

        Raises:
            UserError: outputs of another shape, which could broadcast.
        """
        outputs: Tensor = self.net(states, times, context)
        if outputs.shape != states.shape:
            raise UserError(
                f"Expected net to map states {list(states.shape)} to outputs of this shape, but got "
                f"{list(outputs.shape)}, try a last layer with {self.size} outputs."
            )
        return outputs

    def _log_probs(self, means: Tensor, states: Tensor) -> Tensor:
        """Log-densities ``[N, K]`` of states ``[N, K, D]`` under independent Gaussians around means."""
        stds = self.chain.schedule(means).stds[: means.shape[1]]
        squares = ((states - means) / stds[:, None]).square().sum(-1)
        return -squares / 2 - self.size * (stds.log() + 0.5 * math.log(2 * math.pi))
