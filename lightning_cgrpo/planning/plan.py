"""The plan of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_cgrpo.cli.configuration import Config, ConfigError
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.modules.constrained_grpo import ConstrainedGRPO
from lightning_cgrpo.planning.communication import Traffic, traffic
from lightning_cgrpo.planning.critic import NOTE, with_critic
from lightning_cgrpo.planning.execution import Execution, execution
from lightning_cgrpo.planning.flops import Flops, language_model_flops, small_policy_flops
from lightning_cgrpo.planning.lengths import answer_length, image_patches, pixel_bounds, prompt_length
from lightning_cgrpo.planning.memory import Memory, arithmetic_of, language_model_memory, small_policy_memory
from lightning_cgrpo.planning.sizes import ModelSizes, language_model_sizes
from lightning_cgrpo.planning.tokens import Tokens, steps, tokens
from lightning_cgrpo.planning.workload import Workload, instantiate, workload
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.policy import Policy
from lightning_cgrpo.policies.vision_language import VisionLanguagePolicy
from lightning_cgrpo.samplers.generation import GenerationSampler
from lightning_cgrpo.samplers.transformers_engine import TransformersEngine


@dataclass(frozen=True)
class Plan:
    """Needs of an update; `memory` and `traffic` are of one GPU, `tokens` and `flops` of all GPUs."""

    policy: str
    parameters: int
    trainable: int
    work: Workload
    how: Execution
    memory: Memory
    tokens: Tokens
    traffic: Traffic
    flops: Flops
    notes: list[str]


def plan(
    config: Config,
    gpus: int | None = None,
    prompt_tokens: int | None = None,
    answer_tokens: int | None = None,
    images: Sequence[tuple[int, int]] | None = None,
    patches: int | None = None,
    model_config: Path | None = None,
) -> Plan:
    """Plan a run.

    Args:
        config: merged, resolved and checked.
        gpus: processes; by default the trainer's devices and nodes.
        prompt_tokens: of a prompt's text; with `patches`, of its images too. By default all allowed.
        answer_tokens: by default all allowed.
        images: (height, width) in pixels of a prompt's images; by default from the data.
        patches: of a prompt's images, instead of `images`.
        model_config: a config.json for the model's own.
    """
    module, data = instantiate(config)
    notes: list[str] = []
    gpus = gpus or _gpus(config, notes)
    policy = getattr(module, "policy", None)
    if not isinstance(policy, Policy):
        raise ConfigError(f"Expected {type(module).__name__} to have a policy, but it has none.")
    how = execution(config, module, gpus)
    answer = answer_length(module, answer_tokens)
    if not isinstance(policy, CausalLMPolicy):
        unread = {"prompt-tokens": prompt_tokens, "images": images, "model-config": model_config}
        for option in (name for name, value in unread.items() if value is not None):
            raise UserError(f"Expected no --{option} for {type(policy).__name__}, which reads no text, but got one.")
        if answer_tokens is None:
            notes.append(f"All episodes are taken to be as long as allowed, {answer} steps (--answer-tokens).")
        return _small(module, policy, workload(module, data, gpus, 0, answer), how, notes)
    sizes = language_model_sizes(policy, model_config, how.double)
    given = patches
    patches, number = (patches, 1) if patches is not None else _images(policy, sizes, data, images, notes)
    seen = 0 if sizes.vision is None else patches // sizes.vision.merge**2
    if prompt_tokens is not None and given is not None:
        prompt_tokens = max(prompt_tokens - seen, 0)
    prompt = prompt_length(module, policy, sizes, answer, prompt_tokens, notes, seen)
    work = workload(module, data, gpus, prompt, answer, patches, number)
    if answer_tokens is None:
        notes.append(f"All answers are taken to be as long as allowed, {work.answer_tokens} tokens (--answer-tokens).")
    notes += _uneven(work, gpus) + _remarks(module, sizes)
    memory = language_model_memory(sizes, work, how, policy.gradient_checkpointing)
    if (learned := getattr(module, "learned", None)) is not None:
        assert isinstance(module, ConstrainedGRPO)
        memory = with_critic(memory, learned, len(module.objective.component_names), work, how, model_config)
        notes.append(NOTE)
    return Plan(
        f"{type(policy).__name__} '{sizes.name}'",
        sizes.parameters,
        sizes.trainable,
        work,
        how,
        memory,
        tokens(work, sizes.obstacle is None),
        traffic(sizes.parameters, sizes.trainable_bytes, work, how, arithmetic_of(sizes, how).element),
        language_model_flops(sizes, work, policy.gradient_checkpointing, how.device),
        notes,
    )


def _small(module: Any, policy: Policy, work: Workload, how: Execution, notes: list[str]) -> Plan:
    if how.double:
        policy.double()
    weights = list(policy.parameters())
    count, size = sum(p.numel() for p in weights), sum(p.nbytes for p in weights)
    memory, learned = small_policy_memory(policy, work, how), getattr(module, "learned", None)
    if learned is not None:
        memory = with_critic(memory, learned, len(module.objective.component_names), work, how, None)
        notes.append(NOTE)
    return Plan(
        type(policy).__name__, count, count, work, how, memory, steps(work),
        traffic(count, size, work, how, size // count), small_policy_flops(policy, work),
        notes + _uneven(work, how.gpus),
    )  # fmt: skip


def _gpus(config: Config, notes: list[str]) -> int:
    trainer: dict[str, Any] = config.get("trainer") or {}
    devices, nodes = trainer.get("devices", "auto"), int(trainer.get("num_nodes") or 1)
    count = len(devices) if isinstance(devices, list) else devices
    if isinstance(count, int) and count > 0:
        return count * nodes
    if trainer.get("accelerator") != "cpu" or nodes > 1:
        notes.append(f"devices: {devices} is taken to be 1 GPU{' of each machine' * (nodes > 1)}, try --gpus.")
    return nodes


def _uneven(work: Workload, gpus: int) -> list[str]:
    if work.all_prompts % gpus == 0:
        return []
    idle = f", and {gpus - work.all_prompts} have none" * (gpus > work.all_prompts)
    return [
        f"{work.all_prompts} prompts are no even shares of {gpus} GPUs: memory is that of a GPU with "
        f"{work.prompts}{idle}."
    ]


def _images(
    policy: CausalLMPolicy, sizes: ModelSizes, data: Any, images: Sequence[tuple[int, int]] | None, notes: list[str]
) -> tuple[int, int]:
    if sizes.vision is None:
        if images:
            raise UserError(f"Expected no images for {type(policy).__name__}, which reads none, but got --images.")
        return 0, 0
    form = getattr(data, "form", None)
    if images is None:
        images = [(form.height, form.width)] * (form.frames * len(form.cameras)) if form is not None else []
    if not images:
        notes.append("Nothing says how many images a prompt has: taken to have none (--images 3x224x448).")
    assert isinstance(policy, VisionLanguagePolicy)
    return image_patches(sizes.vision, images, pixel_bounds(policy, sizes.vision.family)), len(images)


def _remarks(module: Any, sizes: ModelSizes) -> list[str]:
    found = []
    if sizes.obstacle is not None:
        found.append(f"Prompts are computed for every answer, because {sizes.obstacle}.")
    sampler = module.sampler
    if isinstance(sampler, GenerationSampler) and not isinstance(sampler.engine, TransformersEngine):
        found.append(f"{type(sampler.engine).__name__} generates: its memory is not in this.")
    if getattr(module, "redraws", 0):
        found.append("Redrawn groups (redraws) are not counted.")
    if not sizes.decoder.gated:
        found.append("Activations are counted as those of a decoder with RMSNorm: of this family, roughly.")
    if sizes.vision is not None and not sizes.vision.tower.gated:
        found.append("Activations of the vision tower are counted as Qwen2.5-VL's: of this family, roughly.")
    return found
