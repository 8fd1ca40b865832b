"""Arguments of constructors: the ends of what is accepted, and the values just beyond, which one line names."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from examples.controllers.exponentiated_gradient import ExponentiatedGradient
from lightning_cgrpo import CISPO, SAPO, GSM8KTask, Optimization
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.grpo.advantages import ScalarizedAdvantages, ScalarizedRewards
from lightning_cgrpo.grpo.critic.critic_advantages import LagrangianGAE, ScalarizedGAE
from lightning_cgrpo.grpo.critic.mlp_critic import MLPCritic
from lightning_cgrpo.grpo.critic.value_learning import ValueLearning
from lightning_cgrpo.grpo.returns_to_go import ReturnsToGo
from lightning_cgrpo.grpo.sampling_correction import SamplingCorrection
from lightning_cgrpo.multipliers import PID, DampedAscent, ProjectedAscent, SoftmaxAdam, StallDetector
from lightning_cgrpo.policies.normalized_observations import NormalizedObservations
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.tasks.functions.task import FunctionTask
from lightning_cgrpo.tasks.gridworld import GridworldTask
from tests.grids import grid_module

NAN, INF = math.nan, math.inf
scalarized = partial(ScalarizedGAE, MLPCritic(1), torch.optim.SGD)
lagrangian = partial(LagrangianGAE, MLPCritic(1), torch.optim.SGD)
function_task = partial(FunctionTask, {"x": len})

BOUNDS: list[tuple[Callable[..., object], str, list[Any], list[Any]]] = [
    # maker, argument, accepted, refused
    (PID, "kp", [0, 3.0], [-0.1, INF, NAN]),
    (PID, "ki", [0.1], [0, -1, INF, NAN]),
    (PID, "kd", [0, 3.0], [-0.1, INF, NAN]),
    (PID, "max_multiplier", [0.1], [0, INF, NAN]),
    (PID, "smoothing", [0, 0.99], [-0.1, 1, NAN]),
    (ProjectedAscent, "lr", [0.1], [0, INF, NAN]),
    (ProjectedAscent, "max_multiplier", [0.1], [0, INF, NAN]),
    (SoftmaxAdam, "lr", [0.1], [0, INF, NAN]),
    (SoftmaxAdam, "init", [-3, 3], [INF, NAN]),
    (DampedAscent, "gain", [0.1], [0, INF, NAN]),
    (DampedAscent, "time", [1], [0, INF, NAN]),
    (DampedAscent, "max_multiplier", [10], [0, INF, NAN]),
    (DampedAscent, "margin", [0, 1, 2], [-0.1, INF, NAN]),
    (partial(ExponentiatedGradient, bound=1), "init", [1], [2]),
    (StallDetector, "updates", [4], [3]),
    (LagrangianCallback, "every_n_updates", [1], [0]),
    (ScalarizedAdvantages, "scale", ["pooled", "group"], ["batch"]),
    (ScalarizedRewards, "scale", ["group", "batch"], ["pooled"]),
    (ReturnsToGo, "gamma", [0, 1], [-0.1, 1.1, NAN]),
    (scalarized, "gamma", [0, 1], [-0.1, 1.1, NAN]),
    (lagrangian, "gae_lambda", [0, 1], [-0.1, 1.1, NAN]),
    (ValueLearning, "epochs", [1], [0]),
    (ValueLearning, "minibatch_size", [1, None], [0]),
    (ValueLearning, "micro_batch_size", [1, None], [0]),
    (ValueLearning, "warmup", [0], [-1]),
    (ValueLearning, "clip", [0.1, None], [0, NAN]),
    (ValueLearning, "max_grad_norm", [0.1, None], [0, NAN]),
    (SamplingCorrection, "high", [1, None], [0.9, NAN]),
    (SamplingCorrection, "low", [0, 1], [-0.1, 1.1, NAN]),
    (CISPO, "cap", [1], [0.9, NAN]),
    (SAPO, "temperature", [0.1], [0, NAN]),
    (SAPO, "negative_temperature", [0.1], [0, NAN]),
    (Optimization, "clip_low", [0, 1], [-0.1, 1.1, NAN]),
    (Optimization, "clip_high", [0, 2.0, None], [-0.1, NAN]),
    (partial(Optimization, clip_low=0.8), "clip_high", [0.9], [1.2]),  # ratios in place of distances from 1
    (partial(Optimization, clip_low=0.5), "clip_high", [0.9], [1]),
    (partial(Optimization, clip_high=0.4), "clip_limit", [1.5, None], [1.4, NAN]),
    (partial(Optimization, surrogate=CISPO()), "clip_low", [0.2], [0.1]),
    (Optimization, "kl_weight", [0], [-0.1, NAN]),
    (Optimization, "entropy_weight", [0], [-0.1, NAN]),
    (partial(Optimization, exact_kl=True), "correct_kl", [False], [True]),
    (Optimization, "epochs", [1], [0]),
    (Optimization, "minibatch_size", [1, None], [0]),
    (Optimization, "micro_batch_size", [1, None], [0]),
    (partial(Optimization, micro_batch_size=1), "micro_batch_tokens", [None], [0, 1]),
    (Optimization, "max_length", [1, None], [0]),
    (Optimization, "max_grad_norm", [0.1, None], [0, NAN]),
    (grid_module, "group_size", [2], [1, 2.5]),
    (grid_module, "redraws", [0], [-1]),
    (grid_module, "eval_group_size", [1], [0]),
    (grid_module, "seed", [0, None], [-1]),
    (NormalizedObservations, "size", [1], [0]),
    (GridworldTask, "cost", ["sum", "steps"], ["total"]),
    (GridworldTask, "rate", ["steps", "episodes"], ["answers"]),
    (GSM8KTask, "max_completion_tokens", [1], [0]),
    (function_task, "time_limit", [0.1, None], [0, NAN]),
    (function_task, "max_completion_tokens", [1], [0]),
    (Sampling, "max_new_tokens", [1], [0]),
    (partial(Sampling, max_new_tokens=2), "min_new_tokens", [0, 2], [-1, 3]),
    (partial(Sampling, max_new_tokens=2), "top_k", [1, None], [0]),
    (partial(Sampling, max_new_tokens=2), "top_p", [0.1, 1], [0, 1.1, NAN]),
    (partial(Sampling, max_new_tokens=2), "min_p", [0, 1], [-0.1, 1.1, NAN]),
    (partial(Sampling, max_new_tokens=2), "batch_size", [1, None], [0]),
    (partial(Sampling, max_new_tokens=2), "repetition_penalty", [0.1], [0, NAN]),
]


def name_of(make: Any) -> str:
    return getattr(make, "func", make).__name__


@pytest.mark.parametrize(
    ("make", "argument", "accepted", "refused"), BOUNDS, ids=lambda x: name_of(x) if callable(x) else None
)
def test_bounds(make: Callable[..., object], argument: str, accepted: list[Any], refused: list[Any]) -> None:
    for value in accepted:
        make(**{argument: value})
    for value in refused:
        with pytest.raises(ValueError, match=argument) as caught:
            make(**{argument: value})
        assert str(caught.value).startswith("Expected") and "\n" not in str(caught.value)
