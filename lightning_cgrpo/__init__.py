"""Constrained GRPO on PyTorch Lightning: state behavior rates, let a Lagrangian do the weighting.

Names are imported at their first use, because Lightning takes seconds to import.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "Argoverse2": "lightning_cgrpo.scenes.argoverse2",
    "CISPO": "lightning_cgrpo.grpo.surrogates",
    "CategoricalMLP": "lightning_cgrpo.policies.categorical_mlp",
    "CausalLMPolicy": "lightning_cgrpo.policies.causal_lm",
    "ConstrainedGRPO": "lightning_cgrpo.modules.constrained_grpo",
    "Constraint": "lightning_cgrpo.objective.constraint",
    "DrivingTask": "lightning_cgrpo.tasks.driving.task",
    "EnvironmentSampler": "lightning_cgrpo.samplers.environment",
    "FSDP2Strategy": "lightning_cgrpo.policies.sharding",
    "FunctionTask": "lightning_cgrpo.tasks.functions",
    "GSM8KTask": "lightning_cgrpo.tasks.gsm8k",
    "GDPO": "lightning_cgrpo.grpo.advantages",
    "GeneratedScenes": "lightning_cgrpo.scenes.generator",
    "GenerationSampler": "lightning_cgrpo.samplers.generation",
    "LeaveOneOut": "lightning_cgrpo.grpo.advantages",
    "LogReplay": "lightning_cgrpo.navsim.traffic.log_replay",
    "NavsimDevkit": "lightning_cgrpo.scenes.devkit",
    "Observations": "lightning_cgrpo.tasks.driving.observations",
    "Objective": "lightning_cgrpo.objective.objective",
    "ObjectiveError": "lightning_cgrpo.objective.constraint",
    "Optimization": "lightning_cgrpo.grpo.minibatches",
    "Reactive": "lightning_cgrpo.navsim.traffic.reactive",
    "RewardModel": "lightning_cgrpo.tasks.functions",
    "SAPO": "lightning_cgrpo.grpo.surrogates",
    "ScalarizedAdvantages": "lightning_cgrpo.grpo.advantages",
    "ScalarizedRewards": "lightning_cgrpo.grpo.advantages",
    "SceneFiles": "lightning_cgrpo.scenes.files",
    "SupervisedFineTuning": "lightning_cgrpo.modules.supervised",
    "VisionLanguagePolicy": "lightning_cgrpo.policies.vision_language",
    "VLLMServer": "lightning_cgrpo.samplers.vllm.server",
    "WrittenThoughts": "lightning_cgrpo.tasks.driving.thoughts",
    "load": "lightning_cgrpo.cli.loading",
}
__all__ = [*_EXPORTS, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'lightning_cgrpo' has no attribute '{name}'")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
