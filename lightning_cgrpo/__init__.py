"""Constrained GRPO on PyTorch Lightning: state behavior rates, let a Lagrangian do the weighting.

The names below are imported when they are first used, since Lightning takes seconds to import.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "Argoverse2": "lightning_cgrpo.tasks.driving.sources.argoverse2",
    "CISPO": "lightning_cgrpo.surrogates",
    "CategoricalMLP": "lightning_cgrpo.policies.categorical_mlp",
    "CausalLMPolicy": "lightning_cgrpo.policies.causal_lm",
    "ConstrainedGRPO": "lightning_cgrpo.module",
    "Constraint": "lightning_cgrpo.constraint",
    "DrivingTask": "lightning_cgrpo.tasks.driving.task",
    "EnvironmentSampler": "lightning_cgrpo.samplers.environment",
    "FSDP2Strategy": "lightning_cgrpo.sharding",
    "FunctionTask": "lightning_cgrpo.tasks.functions",
    "GSM8KTask": "lightning_cgrpo.tasks.gsm8k",
    "GDPO": "lightning_cgrpo.advantages",
    "GeneratedScenes": "lightning_cgrpo.tasks.driving.sources.generator",
    "GenerationSampler": "lightning_cgrpo.samplers.generation",
    "LeaveOneOut": "lightning_cgrpo.advantages",
    "LogReplay": "lightning_cgrpo.tasks.driving.traffic.log_replay",
    "NavsimDevkit": "lightning_cgrpo.tasks.driving.sources.devkit",
    "Observations": "lightning_cgrpo.tasks.driving.observations",
    "Objective": "lightning_cgrpo.objective",
    "ObjectiveError": "lightning_cgrpo.constraint",
    "Optimization": "lightning_cgrpo.optimization",
    "Reactive": "lightning_cgrpo.tasks.driving.traffic.reactive",
    "RewardModel": "lightning_cgrpo.tasks.functions",
    "SAPO": "lightning_cgrpo.surrogates",
    "ScalarizedAdvantages": "lightning_cgrpo.advantages",
    "ScalarizedRewards": "lightning_cgrpo.advantages",
    "SceneFiles": "lightning_cgrpo.tasks.driving.sources.files",
    "SupervisedFineTuning": "lightning_cgrpo.sft",
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
