"""Constrained GRPO on PyTorch Lightning: state behavior rates, let a Lagrangian do the weighting.

Names are imported at first use, because Lightning takes seconds to import.
"""

from __future__ import annotations

import lightning_cgrpo.core.stdlib_first  # noqa: F401

# isort: split

import importlib
from typing import Any

__version__ = "0.2.0"

_EXPORTS = {
    "AdvantageEstimator": "lightning_cgrpo.grpo.advantages",
    "AnswerFormat": "lightning_cgrpo.tasks.driving.answers",
    "CategoricalMLP": "lightning_cgrpo.policies.categorical_mlp",
    "CausalLMPolicy": "lightning_cgrpo.policies.causal_lm",
    "ChainPolicy": "lightning_cgrpo.policies.chain_policy",
    "ChainSampler": "lightning_cgrpo.samplers.chain",
    "CISPO": "lightning_cgrpo.grpo.surrogates",
    "ConstrainedAdvantages": "lightning_cgrpo.grpo.constrained_advantages",
    "ConstrainedGRPO": "lightning_cgrpo.modules.constrained_grpo",
    "Constraint": "lightning_cgrpo.objective.constraint",
    "Controller": "lightning_cgrpo.multipliers.controller",
    "Critic": "lightning_cgrpo.grpo.critic.critic",
    "CriticAdvantages": "lightning_cgrpo.grpo.critic.critic_advantages",
    "DrivingTask": "lightning_cgrpo.tasks.driving.task",
    "Environment": "lightning_cgrpo.samplers.environment",
    "EnvironmentSampler": "lightning_cgrpo.samplers.environment",
    "FolderPush": "lightning_cgrpo.samplers.vllm.folder_push",
    "FSDP2Strategy": "lightning_cgrpo.policies.sharding",
    "FunctionTask": "lightning_cgrpo.tasks.functions",
    "Gaussian": "lightning_cgrpo.policies.action_distributions",
    "GaussianMLP": "lightning_cgrpo.policies.gaussian_mlp",
    "GDPO": "lightning_cgrpo.grpo.advantages",
    "GeneratedScenes": "driving_scenes.generator",
    "ConversationSampler": "lightning_cgrpo.samplers.conversation.sampler",
    "GenerationSampler": "lightning_cgrpo.samplers.generation",
    "GroupDataModule": "lightning_cgrpo.datamodules.base",
    "GSM8KTask": "lightning_cgrpo.tasks.gsm8k",
    "Gymnasium": "lightning_cgrpo.tasks.gymnasium",
    "GymnasiumTask": "lightning_cgrpo.tasks.gymnasium",
    "IPCPush": "lightning_cgrpo.samplers.vllm.ipc_push",
    "LagrangianGAE": "lightning_cgrpo.grpo.critic.critic_advantages",
    "LanguageCritic": "lightning_cgrpo.grpo.critic.language_critic",
    "LeaveOneOut": "lightning_cgrpo.grpo.advantages",
    "load": "lightning_cgrpo.cli.loading",
    "LogReplay": "navsim_score.traffic.log_replay",
    "Look": "lightning_cgrpo.objective.look",
    "MLPCritic": "lightning_cgrpo.grpo.critic.mlp_critic",
    "MovingObservations": "lightning_cgrpo.tasks.driving.moving_observations",
    "NavsimDevkit": "driving_scenes.devkit",
    "NCCLPush": "lightning_cgrpo.samplers.vllm.nccl_push",
    "NetworkPolicy": "lightning_cgrpo.policies.network_policy",
    "NormalizedObservations": "lightning_cgrpo.policies.normalized_observations",
    "Objective": "lightning_cgrpo.objective.objective",
    "ObjectiveError": "lightning_cgrpo.objective.constraint",
    "Observations": "lightning_cgrpo.tasks.driving.observations",
    "Optimization": "lightning_cgrpo.grpo.minibatches",
    "SamplingCorrection": "lightning_cgrpo.grpo.sampling_correction",
    "Policy": "lightning_cgrpo.policies.policy",
    "PromptGroups": "lightning_cgrpo.core.rollout",
    "PromptSource": "lightning_cgrpo.core.prompts.source",
    "PlannerInputs": "lightning_cgrpo.samplers.chain",
    "Reactive": "navsim_score.traffic.reactive",
    "RecurrentPolicy": "lightning_cgrpo.policies.network_policy",
    "ReturnsToGo": "lightning_cgrpo.grpo.returns_to_go",
    "RewardModel": "lightning_cgrpo.tasks.functions",
    "Rollouts": "lightning_cgrpo.core.rollout",
    "Sampler": "lightning_cgrpo.samplers.sampler",
    "SAPO": "lightning_cgrpo.grpo.surrogates",
    "ScalarizedAdvantages": "lightning_cgrpo.grpo.advantages",
    "ScalarizedGAE": "lightning_cgrpo.grpo.critic.critic_advantages",
    "ScalarizedRewards": "lightning_cgrpo.grpo.advantages",
    "SceneFiles": "driving_scenes.files",
    "SceneSource": "driving_scenes.source",
    "Signal": "lightning_cgrpo.core.rollout",
    "SupervisedFineTuning": "lightning_cgrpo.modules.supervised",
    "Task": "lightning_cgrpo.tasks.task",
    "TrajectoryTask": "lightning_cgrpo.tasks.driving.trajectory_task",
    "VisionLanguagePolicy": "lightning_cgrpo.policies.vision_language",
    "VLLMServer": "lightning_cgrpo.samplers.vllm.server",
    "WrittenThoughts": "lightning_cgrpo.tasks.driving.thoughts",
}
__all__ = [*_EXPORTS, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'lightning_cgrpo' has no attribute '{name}'")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
