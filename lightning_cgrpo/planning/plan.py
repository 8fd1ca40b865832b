"""All that is planned of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_cgrpo.configuration import Config
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.planning.execution import Execution, execution
from lightning_cgrpo.planning.flops import Flops, language_model_flops, small_policy_flops
from lightning_cgrpo.planning.images import image_patches, pixel_bounds
from lightning_cgrpo.planning.memory import Memory, arithmetic_of, language_model_memory
from lightning_cgrpo.planning.sizes import ModelSizes, language_model_sizes
from lightning_cgrpo.planning.small import small_policy_memory
from lightning_cgrpo.planning.tokens import Tokens, steps, tokens
from lightning_cgrpo.planning.traffic import Traffic, traffic
from lightning_cgrpo.planning.workload import Workload, images_of_prompts, instantiate, policy_of, workload
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.vision_language import VisionLanguagePolicy
from lightning_cgrpo.samplers.generation import GenerationSampler
from lightning_cgrpo.samplers.transformers_engine import TransformersEngine

PROMPT_TOKENS = 512
"""Assumed where nothing says how long prompts are."""


@dataclass(frozen=True)
class Given:
    """What the command line adds to the configuration.

    Args:
        gpus: processes; by default the trainer's devices and nodes, if it says how many.
        prompt_tokens: of a prompt's text, and of its images if `patches` or none are given.
        answer_tokens: of an answer; by default all are as long as allowed.
        images: height and width of a prompt's images; by default what the data's settings say.
        patches: of a prompt's images, if known better than from their sizes; their tokens are in `prompt_tokens`.
        model_config: a config.json, in the place of the model's own.
    """

    gpus: int | None = None
    prompt_tokens: int | None = None
    answer_tokens: int | None = None
    images: Sequence[tuple[int, int]] | None = None
    patches: int | None = None
    model_config: Path | None = None


@dataclass(frozen=True)
class Plan:
    """What a run needs.

    Args:
        policy: its class and model.
        parameters: of it.
        trainable: those that are trained.
        work: an update.
        how: precision, strategy and GPUs.
        memory: of a GPU.
        tokens: of an update.
        traffic: of a GPU in an update.
        flops: of all GPUs in an update.
        notes: what was assumed.
    """

    policy: str
    parameters: int
    trainable: int
    work: Workload
    how: Execution
    memory: Memory
    tokens: Tokens
    traffic: Traffic
    flops: Flops
    notes: list[str] = field(default_factory=list)


def plan(config: Config, given: Given) -> Plan:
    """Plan a run.

    Args:
        config: merged, resolved and checked, as `fit` would get it.

    Raises:
        UserError: configuration or model can't be read or can't be planned.
    """
    module, data = instantiate(config)
    gpus = given.gpus or _gpus(config)
    policy, how = policy_of(module), execution(config, module, gpus)
    if not isinstance(policy, CausalLMPolicy):
        work = workload(module, data, gpus, prompt_tokens=0, answer_tokens=given.answer_tokens)
        count = sum(p.numel() for p in policy.parameters())
        return Plan(
            type(policy).__name__, count, count, work, how, small_policy_memory(policy, work, how),
            steps(work), traffic(count, 4 * count, work, how, 4), small_policy_flops(policy, work),
            ["All episodes are taken to be as long as allowed."],
        )  # fmt: skip
    sizes = language_model_sizes(policy, given.model_config)
    notes: list[str] = []
    patches, images = _images(policy, sizes, data, given, notes)
    text = given.prompt_tokens or _assumed_prompt(policy, notes)
    # A bound on prompts is one on all of their tokens.
    seen = 0 if sizes.vision is None else patches // sizes.vision.merge**2
    whole = text if given.patches is not None or given.prompt_tokens is None else text + seen
    work = workload(module, data, gpus, max(whole, seen), given.answer_tokens, patches, images)
    if given.answer_tokens is None:
        notes.append(f"All answers are taken to be as long as allowed, {work.answer_tokens} tokens (--answer-tokens).")
    notes += _remarks(module, sizes, work)
    arithmetic = arithmetic_of(sizes, how)
    return Plan(
        f"{type(policy).__name__} '{sizes.name}'",
        sizes.parameters,
        sizes.trainable,
        work,
        how,
        language_model_memory(sizes, work, how, policy.gradient_checkpointing),
        tokens(work, sizes.obstacle is None),
        traffic(sizes.parameters, sizes.trainable_bytes, work, how, arithmetic.element),
        language_model_flops(sizes, work, arithmetic, policy.gradient_checkpointing),
        notes,
    )


def _gpus(config: Config) -> int:
    trainer: dict[str, Any] = config.get("trainer") or {}
    devices, nodes = trainer.get("devices", 1), trainer.get("num_nodes", 1)
    count = len(devices) if isinstance(devices, list) else devices
    return int(count) * int(nodes) if isinstance(count, int) and count > 0 else 1


def _assumed_prompt(policy: CausalLMPolicy, notes: list[str]) -> int:
    longest = policy.max_prompt_tokens
    if longest is not None:
        notes.append(f"Prompts are taken to be as long as allowed, {longest} tokens (--prompt-tokens).")
        return longest
    notes.append(f"Nothing says how long prompts are: taken to have {PROMPT_TOKENS} tokens (--prompt-tokens).")
    return PROMPT_TOKENS


def _images(policy: CausalLMPolicy, sizes: ModelSizes, data: Any, given: Given, notes: list[str]) -> tuple[int, int]:
    """Patches of a prompt's images, and the number of these."""
    if sizes.vision is None:
        if given.images:
            raise UserError(f"Expected no images for {type(policy).__name__}, which reads none, but got --images.")
        return 0, 0
    if given.patches is not None:
        return given.patches, 1
    images = list(images_of_prompts(data) if given.images is None else given.images)
    if not images:
        notes.append("Nothing says how many images a prompt has: taken to have none (--images 3x224x448).")
    assert isinstance(policy, VisionLanguagePolicy)
    patches = image_patches(sizes.vision, images, pixel_bounds(policy))
    return patches, len(images)


def _remarks(module: Any, sizes: ModelSizes, work: Workload) -> list[str]:
    found = []
    if sizes.obstacle is not None:
        found.append(f"Prompts are computed for every answer, because {sizes.obstacle}.")
    sampler = module.sampler
    if isinstance(sampler, GenerationSampler) and not isinstance(sampler.engine, TransformersEngine):
        found.append(f"{type(sampler.engine).__name__} generates: its memory and time are not in this.")
    if getattr(module, "redraws", 0):
        found.append("Groups that are sampled again (redraws) are not counted.")
    if not sizes.decoder.gated:
        found.append("Activations are counted as those of a decoder with RMSNorm: of this family, roughly.")
    return found
