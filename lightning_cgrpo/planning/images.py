"""How many patches the images of a prompt are, without the images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.planning.sizes import Vision
from lightning_cgrpo.policies.vision_language import VisionLanguagePolicy


def pixel_bounds(policy: VisionLanguagePolicy) -> tuple[int, int]:
    """Least and most pixels of a scaled image: the policy's, or those of the model's image processor.

    Where that isn't there, with a config.json alone, those of transformers' defaults.
    """
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    folder = Path(policy.name).expanduser()
    if policy.image_processor is not None:
        processor = policy.image_processor
    elif (folder / "preprocessor_config.json").is_file():
        processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
    else:
        processor = Qwen2VLImageProcessorPil()
    size = processor.size
    return policy.min_pixels or size["shortest_edge"], policy.max_pixels or size["longest_edge"]


def image_patches(vision: Vision, images: Sequence[tuple[int, int]], bounds: tuple[int, int]) -> int:
    """Patches of images that Qwen2-VL's processor has scaled: `merge` squared of them make a token.

    Args:
        vision: the tower.
        images: height and width of each, pixels.
        bounds: least and most pixels of a scaled image.

    Raises:
        UserError: an image is too long and narrow to be scaled.
    """
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

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
