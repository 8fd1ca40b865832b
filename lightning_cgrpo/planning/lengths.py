"""Lengths of prompts and answers: as given, or the longest allowed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch import LightningModule

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.modules.supervised import SupervisedFineTuning
from lightning_cgrpo.planning.sizes import ModelSizes, Vision
from lightning_cgrpo.planning.workload import longest_answer
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.vision_families import QwenVL
from lightning_cgrpo.policies.vision_language import VisionLanguagePolicy

PROMPT_TOKENS = 512
"""Assumed if no setting bounds prompts."""


def answer_length(module: LightningModule, given: int | None) -> int:
    """Tokens or steps of an answer: `given`, or the longest allowed."""
    longest = longest_answer(module)
    if given is not None and given > longest and not isinstance(module, SupervisedFineTuning):
        raise UserError(
            f"Expected --answer-tokens to be at most {longest}, which the sampler's max_new_tokens (or the "
            f"environment's max_steps) allows, but got {given}, try less, or more of that."
        )
    return longest if given is None else given


def prompt_length(
    module: LightningModule,
    policy: CausalLMPolicy,
    sizes: ModelSizes,
    answer: int,
    given: int | None,
    notes: list[str],
    images: int = 0,
) -> int:
    """Tokens of a prompt with its images.

    Args:
        given: tokens of the text; None for the longest allowed, or `PROMPT_TOKENS`.
        notes: assumptions are added.
        images: tokens of images.
    """
    longest = answer if isinstance(module, SupervisedFineTuning) else longest_answer(module)
    room = None if sizes.context is None else sizes.context - longest
    allowed = min((limit for limit in (policy.max_prompt_tokens, room) if limit is not None), default=None)
    if given is not None:
        tokens = given + images
    elif allowed is None or (policy.max_prompt_tokens is None and allowed > PROMPT_TOKENS):
        notes.append(f"Nothing says how long prompts are: taken to have {PROMPT_TOKENS} tokens (--prompt-tokens).")
        tokens = max(PROMPT_TOKENS, images)
    else:
        notes.append(f"Prompts are taken to be as long as allowed, {allowed} tokens (--prompt-tokens).")
        tokens = max(allowed, images, 1)
    seen = f", {images} of them images'" if images else ""
    if policy.max_prompt_tokens is not None and tokens > policy.max_prompt_tokens:
        raise UserError(
            f"Expected prompts of at most max_prompt_tokens, {policy.max_prompt_tokens}, but got {tokens} "
            f"tokens{seen}, try less, or a larger max_prompt_tokens."
        )
    if room is not None and tokens > room:
        raise UserError(
            f"Expected prompt and answer to fit into the {sizes.context} positions of '{sizes.name}', but got a prompt "
            f"of {tokens} tokens{seen} and answers of up to {longest}, try less of either."
        )
    return tokens


def pixel_bounds(policy: VisionLanguagePolicy, family: type[QwenVL] = QwenVL) -> tuple[int, int]:
    """Least and most pixels of a scaled image; the family's without a saved processor."""
    from transformers import AutoImageProcessor

    folder, processor = Path(policy.name).expanduser(), policy.image_processor
    if processor is None and (folder / "preprocessor_config.json").is_file():
        processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    least, most = family.released if processor is None else family.bounds(processor)
    return policy.min_pixels or least, policy.max_pixels or most


def image_patches(vision: Vision, images: Sequence[tuple[int, int]], bounds: tuple[int, int]) -> int:
    """Number of patches of images after the family's scaling.

    Args:
        images: (height, width) in pixels.
        bounds: least and most pixels of an image.
    """
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    if vision.tile:
        cutter = GotOcr2ImageProcessorPil(size={"height": vision.tile, "width": vision.tile}, crop_to_patches=True)
        vision.family.bound(cutter, *bounds)
        tiles = sum(cutter.get_number_of_image_patches(height, width) for height, width in images)
        return tiles * (vision.tile // vision.patch_size) ** 2
    factor, patches = vision.patch_size * vision.merge, 0
    for height, width in images:
        try:
            scaled = smart_resize(height, width, factor, *bounds)
        except ValueError as error:
            raise UserError(
                f"Expected images that can be scaled, but got {height} x {width} pixels ({error})."
            ) from None
        patches += (scaled[0] // vision.patch_size) * (scaled[1] // vision.patch_size)
    return patches
