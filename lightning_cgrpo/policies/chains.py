"""Chains that lead from noise to an answer by Gaussian steps: diffusion (DDIM) and flow matching.

Shapes: N answers, K steps of a chain, D numbers of an answer. State k is x_k [N, D]; state 0 is noise, state K the
answer. A chain mixes answer and noise: x_k = a_k answer + b_k noise, with a_0 near 0 and b_K = 0.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.settings.objects import Stated


@dataclass(frozen=True)
class Schedule:
    """Numbers of a chain's K steps, ``[K]`` each."""

    times: Tensor  # of the states before the steps
    answer: Tensor  # shares of the answer, before
    noise: Tensor  # shares of the noise, before
    next_answer: Tensor  # shares of the answer, after
    kept: Tensor  # shares of the estimated noise, after
    stds: Tensor


class Chain(Stated, ABC):
    r"""A schedule of K steps, and what the network's outputs mean.

    From the network's output at state k, `split` estimates answer and noise. The next state is drawn from a Gaussian:

    $$x_{k+1} \sim N\left(a_{k+1}\, \widehat{answer} + \sqrt{b_{k+1}^2 - \sigma_k^2}\; \widehat{noise},\
    \max(\sigma_k, \sigma_{min})^2\right)$$

    With the true answer instead of its estimate and no `min_std`, each state has the marginal moments of the mixture:
    mean a_k answer and standard deviation b_k, whatever sigma is (Song et al., 2021, "Denoising diffusion implicit
    models", lemma 1). With sigma = 0, it is the sampler without noise, which has no densities.

    Args:
        times: K + 1 times of the states, which the network gets, from the noise's to 0.
        answer_shares: a_k of the states.
        noise_shares: b_k of the states.
        stds: sigma_k of the steps.
        min_std: least standard deviation of a step, in units of the answer; above 0, because the last step has no
            noise of its own and its log-probability would be infinite.
    """

    def __init__(
        self,
        times: list[float],
        answer_shares: list[float],
        noise_shares: list[float],
        stds: list[float],
        min_std: float,
    ) -> None:
        expect(min_std > 0, "min_std", "greater than 0, because the last step would have no density", min_std)
        self.steps = len(stds)
        self.times = times
        self.answer_shares = answer_shares
        self.noise_shares = noise_shares
        self.stds = [max(std, min_std) for std in stds]
        """Standard deviations of the K steps."""
        # The estimated noise keeps the share that fresh noise leaves.
        self._kept = []
        for noise_share, std in zip(noise_shares[1:], stds, strict=True):
            self._kept.append(math.sqrt(max(0.0, noise_share * noise_share - std * std)))
        self._schedules: dict[tuple[torch.dtype, torch.device], Schedule] = {}

    def schedule(self, like: Tensor) -> Schedule:
        """The schedule in the dtype and on the device of a tensor; made once, because a copy to a GPU is waited for."""
        place = (like.dtype, like.device)
        if place not in self._schedules:
            with torch.inference_mode(False):  # training uses it, too
                self._schedules[place] = Schedule(
                    times=like.new_tensor(self.times[:-1]),
                    answer=like.new_tensor(self.answer_shares[:-1]),
                    noise=like.new_tensor(self.noise_shares[:-1]),
                    next_answer=like.new_tensor(self.answer_shares[1:]),
                    kept=like.new_tensor(self._kept),
                    stds=like.new_tensor(self.stds),
                )
        return self._schedules[place]

    @abstractmethod
    def split(self, states: Tensor, outputs: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Estimated answer and noise ``[..., D]`` of states that are a answer + b noise, from the network's outputs."""

    def mean(self, states: Tensor, outputs: Tensor, step: int | slice) -> Tensor:
        """Means ``[N, D]`` of the states after one step, or ``[N, K, D]`` after the steps of a slice.

        Args:
            states: ``[N, D]`` or ``[N, K, D]``, before the steps.
            outputs: the network's, for these states.
            step: its number, or a slice of steps.
        """
        schedule = self.schedule(states)
        answer_share = schedule.answer[step, None]
        noise_share = schedule.noise[step, None]
        answer, noise = self.split(states, outputs, answer_share, noise_share)
        return schedule.next_answer[step, None] * answer + schedule.kept[step, None] * noise


class DDIM(Chain):
    r"""Diffusion with the cosine schedule and fresh noise of share `eta`.

    With $\bar\alpha(t) = \cos^2(\pi t / 2)$, $a = \sqrt{\bar\alpha}$, $b = \sqrt{1 - \bar\alpha}$ and
    $\sigma_k = \eta\, (b_{k+1} / b_k) \sqrt{1 - \bar\alpha_k / \bar\alpha_{k+1}}$ (Song et al., 2021, equation 16).

    Args:
        steps: of the chain (K).
        eta: share of fresh noise, above 0; 1 is the ancestral sampler (DDPM).
        min_std: see `Chain`.
        predicts_noise: the network's outputs are the noise; by default the answer.
        start: time of the first state, below 1, where nothing of the answer would be left to divide by; an earlier time
            truncates the chain, which then starts near its anchors.
    """

    def __init__(
        self,
        steps: int = 5,
        eta: float = 1.0,
        min_std: float = 0.1,
        predicts_noise: bool = False,
        start: float = 0.98,
    ) -> None:
        expect(steps >= 1, "steps", "at least 1", steps)
        expect(0 < eta <= 1, "eta", "in (0, 1]", eta)
        expect(0 < start < 1, "start", "between 0 and 1", start)
        self.predicts_noise = predicts_noise
        times = [start * (1 - step / steps) for step in range(steps + 1)]
        shares = [math.cos(math.pi * time / 2) for time in times]
        noises = [math.sin(math.pi * time / 2) for time in times]
        stds = []
        for step in range(steps):
            fresh = math.sqrt(max(0.0, 1 - (shares[step] / shares[step + 1]) ** 2))
            stds.append(eta * noises[step + 1] / noises[step] * fresh)
        super().__init__(times, shares, noises, stds, min_std)

    def split(self, states: Tensor, outputs: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        if self.predicts_noise:
            return (states - b * outputs) / a, outputs
        return outputs, (states - a * outputs) / b


class Flow(Chain):
    r"""Flow matching on straight lines, a = 1 - t and b = t, with fresh noise of share `noise`.

    The network's outputs are velocities, noise - answer. $\sigma_k = t_{k+1} \sin(\pi\, noise / 2)$ keeps the marginals
    (Wang & Yu, 2025, "Coefficients-preserving sampling for reinforcement learning with flow matching").

    Args:
        steps: of the chain (K).
        noise: share of fresh noise, above 0; 1 replaces all noise at each step.
        min_std: see `Chain`.
        start: time of the first state; less than 1 truncates the chain, which then starts near its anchors.
    """

    def __init__(self, steps: int = 5, noise: float = 0.5, min_std: float = 0.1, start: float = 1.0) -> None:
        expect(steps >= 1, "steps", "at least 1", steps)
        expect(0 < noise <= 1, "noise", "in (0, 1]", noise)
        expect(0 < start <= 1, "start", "in (0, 1]", start)
        times = [start * (1 - step / steps) for step in range(steps + 1)]
        stds = [time * math.sin(math.pi * noise / 2) for time in times[1:]]
        answer_shares = [1 - time for time in times]
        super().__init__(times, answer_shares, times, stds, min_std)

    def split(self, states: Tensor, outputs: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return states - b * outputs, states + a * outputs
