"""Qwen2.5-VL of Hugging Face transformers as a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.host import on_host
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.pretrained import LoRA, read
from lightning_cgrpo.policies.sharding import in_shards
from lightning_cgrpo.policies.shared_prefix.attention import NAME as PACKED
from lightning_cgrpo.policies.shared_prefix.attention import Attend, no_mask
from lightning_cgrpo.policies.text_policy import Messages, Tools
from lightning_cgrpo.rollout import NO_INPUTS

PLACEHOLDER = "<|image_pad|>"
"""Token of an image in the chat template, repeated for every token of the image."""
FAMILY = "qwen2_5_vl"


class VisionLanguagePolicy(CausalLMPolicy):
    """Chooses the next token, given texts and images and the answer's earlier tokens.

    A prompt is a list of messages, whose content is a text or a list of ``{"type": "text", "text": …}`` and
    ``{"type": "image", "image": …}`` with a PIL image or an array ``[H, W, 3]`` of bytes.

    With images, rollouts have two further inputs, padded with 0: ``patches [B, L, D]`` of D numbers, and ``grids [B, I,
    3]``, each image's number of patches in time, height and width.

    Args:
        model: as in `CausalLMPolicy`, like the next five arguments.
        min_pixels: scale smaller images up to this area; None for the model's default.
        max_pixels: scale larger images down to this area; patches of 14 pixels give area / 784 tokens.
    """

    reads_images = True

    def __init__(
        self,
        model: str,
        temperature: float = 1.0,
        dtype: str | None = "float32",
        lora: LoRA | None = None,
        gradient_checkpointing: bool = False,
        max_prompt_tokens: int | None = None,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
    ) -> None:
        super().__init__(model, temperature, dtype, lora, gradient_checkpointing, max_prompt_tokens)
        self.min_pixels, self.max_pixels = min_pixels, max_pixels
        self.image_processor: Any = None
        self.image_token = -1

    @classmethod
    def from_model(  # type: ignore[override]
        cls, model: nn.Module, tokenizer: Any, image_processor: Any, **options: Any
    ) -> VisionLanguagePolicy:
        policy = cls(type(model).__name__, dtype=None, **options)
        policy.model, policy.tokenizer, policy.image_processor = model, tokenizer, image_processor
        policy.load()
        return policy

    def load(self) -> None:
        self._read_once()
        family = self.network.config.model_type
        if family != FAMILY:
            raise UserError(f"Expected a model of the family {FAMILY}, but '{self.name}' is of {family}.")
        self.image_token = self.network.config.image_token_id
        super().load()

    def _report_unshared(self, reason: str) -> None:
        raise UserError(
            f"Expected a model that allows shared prompts, but got '{self.name}', which does not, because {reason}, "
            "try another model."
        )

    def _read(self) -> None:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self.model, self.tokenizer = read(self.name, self.dtype, "AutoModelForImageTextToText")
        # A directory of adapters has its own settings, which determine the tokens of an image.
        own = Path(self.name).expanduser() / "preprocessor_config.json"
        source = own.parent if own.is_file() else self.network.name_or_path
        processor = Qwen2VLImageProcessorPil.from_pretrained(source)
        for bound, pixels in (("shortest_edge", self.min_pixels), ("longest_edge", self.max_pixels)):
            if pixels is not None:
                processor.size[bound] = pixels
        self.image_processor = processor

    # --- prompts

    def read_prompts(
        self, prompts: Sequence[str | Messages], index: Tensor | None = None, tools: Tools = ()
    ) -> tuple[list[list[int]], dict[str, Tensor]]:
        """Tokens of B prompts, with a placeholder per image token; `patches` and `grids`, or {} without images."""
        self._check_loaded()
        numbers = range(len(prompts)) if index is None else index.tolist()
        patches, grids, tokens = [], [], []
        for prompt, number in zip(prompts, numbers, strict=True):
            of_prompt, grid = self._patches(images_of(prompt), number)
            patches.append(of_prompt)
            grids.append(grid)
            text = self._expanded(self._text(prompt, number, tools), grid, number)
            tokens.append(self._tokens(prompt, text, number))
        if not any(len(grid) for grid in grids):
            return tokens, {}
        padded = (pad_sequence(rows, batch_first=True).to(self.device) for rows in (patches, grids))
        return tokens, dict(zip(("patches", "grids"), padded, strict=True))

    def _patches(self, images: list[Any], number: int) -> tuple[Tensor, Tensor]:
        """Patches ``[L, D]`` and grids ``[I, 3]`` of a prompt's images."""
        if not images:
            return torch.zeros(0, self._patch_size), torch.zeros(0, 3, dtype=torch.int64)
        try:
            processed = self.image_processor(images=images, return_tensors="pt")
        except (ValueError, TypeError, OSError) as error:
            raise UserError(f"Expected readable images in prompt {number}, but got: {error}.") from None
        return processed["pixel_values"], processed["image_grid_thw"]

    @property
    def _patch_size(self) -> int:
        vision = self.network.config.vision_config
        return int(vision.in_channels * vision.temporal_patch_size * vision.patch_size**2)

    def _expanded(self, text: str, grid: Tensor, number: int) -> str:
        first, *pieces = text.split(PLACEHOLDER)
        if len(pieces) != len(grid):
            raise UserError(
                f"Expected as many placeholders {PLACEHOLDER} in prompt {number} as images, {len(grid)}, but got "
                f"{len(pieces)}, because the chat template writes none, or a text holds one."
            )
        sizes = (grid.prod(-1) // self.network.config.vision_config.spatial_merge_size**2).tolist()
        return first + "".join(PLACEHOLDER * size + piece for size, piece in zip(sizes, pieces, strict=True))

    # --- passes

    def prompt_positions(self, ids: Tensor, lengths: Tensor, inputs: Mapping[str, Tensor]) -> Tensor | None:
        """Positions ``[3, S]`` in time, height and width, equal on all axes for text; None without images."""
        if not inputs:
            return None
        positions = []
        host, grids = on_host(ids, inputs["grids"])
        for row, grid in zip(host.split(lengths.tolist()), grids, strict=True):
            kinds = (row == self.image_token).int()
            found, _ = self.network.model.get_rope_index(row[None], kinds[None], image_grid_thw=grid[grid.prod(-1) > 0])
            positions.append(found[:, 0])
        return torch.cat(positions, 1).to(ids.device, non_blocking=True)

    def hidden(
        self, ids: Tensor, positions: Tensor, attend: Attend, inputs: Mapping[str, Tensor] = NO_INPUTS
    ) -> Tensor:
        with self._checkpointing(torch.is_grad_enabled()):
            embedded = self.network.get_input_embeddings()(ids)
            images = bool(inputs) and bool(inputs["grids"].any())
            if not images and (nothing := self._no_images()) is not None:
                embedded = embedded + nothing
            if images:
                features = self._features(inputs).to(embedded.dtype)
                # Prompts come first; a placeholder in an answer is an ordinary token.
                places = (ids == self.image_token).nonzero()[: len(features)]
                embedded = embedded.scatter(0, places.expand(-1, embedded.shape[1]), features)
            output = self.network.model.language_model(
                inputs_embeds=embedded[None],
                attention_mask=no_mask(ids.device),
                position_ids=positions[:, None].expand(3, 1, -1),
                use_cache=False,
                **{PACKED: attend},
            )
        states: Tensor = output.last_hidden_state[0]
        return states

    def _features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The vision tower's output for all images' tokens, ``[tokens, hidden size]``."""
        sizes = inputs["grids"].prod(-1)
        taken = torch.arange(inputs["patches"].shape[1], device=sizes.device) < sizes.sum(-1, keepdim=True)
        output = self.network.model.get_image_features(inputs["patches"][taken], inputs["grids"][sizes > 0])
        return torch.cat(list(output.pooler_output))

    def _no_images(self) -> Tensor | None:
        """A scalar 0 that depends on the vision tower's parameters, for passes without images; None if not needed."""
        tower = self.network.model.visual
        if in_shards(tower.blocks[0]):
            # The smallest image, because all processes gather the tower's layers together.
            side = self.network.config.vision_config.spatial_merge_size
            patches = torch.zeros(1, side * side, self._patch_size, device=self.device)
            grids = torch.tensor([[[1, side, side]]], device=self.device)
            return self._features({"patches": patches, "grids": grids}).sum() * 0
        trained = [p for p in tower.parameters() if p.requires_grad] if torch.is_grad_enabled() else []
        return torch.stack([p.sum() for p in trained]).sum() * 0 if trained else None

    def save_pretrained(
        self, directory: str | Path, merge: bool = False, weights: Mapping[str, Tensor] | None = None
    ) -> None:
        super().save_pretrained(directory, merge, weights)
        self.image_processor.save_pretrained(directory)


def images_of(prompt: str | Messages) -> list[Any]:
    """Images in a prompt's messages, in order."""
    contents = [] if isinstance(prompt, str) else [message["content"] for message in prompt]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return [part["image"] for part in parts if part["type"] == "image"]
