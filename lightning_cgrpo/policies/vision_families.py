"""Differences between the supported families of vision-language models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.utils.generic import is_flash_attention_requested
from transformers.vision_utils import (
    get_vision_cu_seqlens,
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
    get_vision_window_index,
)

from lightning_cgrpo.core.errors import UserError


@dataclass(frozen=True)
class QwenVL:
    """Qwen2.5-VL: images of any size, positions in time, height and width."""

    network: Any
    placeholder: ClassVar[str] = "<|image_pad|>"
    """Token of an image in the chat template, repeated for every token of the image."""
    texts_around: ClassVar[tuple[str, str]] = ("", "")
    """Texts before and after an image's tokens that the chat template leaves out."""
    axes: ClassVar[int] = 3
    """Numbers that give a token's position."""

    @property
    def towers(self) -> tuple[nn.Module, ...]:
        """Modules that compute an image's features."""
        return (self.network.model.visual,)

    @property
    def layers(self) -> nn.ModuleList:
        """Transformer layers of the vision tower."""
        return self.network.model.visual.blocks

    @property
    def numbers_per_row(self) -> int:
        """Numbers in a row of `read`."""
        vision = self.network.config.vision_config
        return int(vision.in_channels * vision.temporal_patch_size * vision.patch_size**2)

    @property
    def merge(self) -> int:
        """Patches along a token's side."""
        return int(self.network.config.vision_config.spatial_merge_size)

    @property
    def patch_size(self) -> int:
        return int(self.network.config.vision_config.patch_size)

    @property
    def patches_per_row(self) -> int:
        """Patches in a row of `read`."""
        return 1

    @property
    def smallest_grid(self) -> tuple[int, int, int]:
        """Grid of the smallest image."""
        return (1, self.merge, self.merge)

    @staticmethod
    def read(processor: Any, images: list[Any]) -> tuple[Tensor, Tensor]:
        """Patches ``[L, D]`` of images, and grids ``[I, 3]``, whose products are each image's number of patches."""
        prepared = processor(images=images, return_tensors="pt")
        return prepared["pixel_values"], prepared["image_grid_thw"]

    def prepare_network(self) -> None:
        """Change the network, after loading; by default nothing."""

    def tokens(self, grids: Tensor) -> Tensor:
        """Number of tokens ``[...]`` of images with grids ``[..., 3]``."""
        return grids.prod(-1) * self.patches_per_row // self.merge**2

    def features(self, patches: Tensor, grids: Tensor) -> list[Tensor]:
        """Features ``[tokens, hidden size]``: of the embeddings, then of each deepstack layer.

        Args:
            grids: on the CPU.
        """
        output = self.network.model.get_image_features(patches, grids, **self._indices_on_device(grids, patches.device))
        return [torch.cat(list(output.pooler_output))]

    def _indices_on_device(self, grids: Tensor, device: torch.device) -> dict[str, Tensor]:
        """Arguments that the tower would compute from grids, made on the host, which would wait at each image."""
        indices, ends = self._patch_indices(grids)
        arguments = dict(ends)
        if is_flash_attention_requested(self.network.model.visual.config):
            indices = indices | ends  # only flash attention reads an image's ends on the device
        for name, tensor in indices.items():
            arguments[name] = tensor.to(device, non_blocking=True)
        return arguments

    def _patch_indices(self, grids: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Indices of patches, and the ends of images and windows, by transformers' names."""
        tower = self.network.model.visual
        windows, bounds = get_vision_window_index(grids, self.merge, tower.window_size, self.patch_size)
        indices = {"position_ids": get_vision_position_ids(grids, self.merge), "window_index": windows}
        return indices, {"cu_seqlens": get_vision_cu_seqlens(grids), "cu_window_seqlens": bounds}

    @staticmethod
    def set_bounds(processor: Any, least: int | None, most: int | None) -> None:
        """Set bounds of an image's area in pixels; None keeps a bound."""
        for name, pixels in (("shortest_edge", least), ("longest_edge", most)):
            if pixels is not None:
                processor.size[name] = pixels


@dataclass(frozen=True)
class Qwen3VL(QwenVL):
    """Qwen3-VL: features of earlier layers of the tower, too (deepstack)."""

    def prepare_network(self) -> None:
        self.network.model.language_model._deepstack_process = add_features

    def features(self, patches: Tensor, grids: Tensor) -> list[Tensor]:
        # Deepstack features enter the first layers of the decoder.
        output = self.network.model.get_image_features(patches, grids, **self._indices_on_device(grids, patches.device))
        return [torch.cat(list(part)) for part in (output.pooler_output, *output.deepstack_features)]

    def _patch_indices(self, grids: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        tower = self.network.model.visual
        corners, weights = get_vision_interpolation_indices_and_weights(
            grids, tower.num_grid_per_side, tower.interpolation_mode, tower.interpolation_align_corners, self.merge
        )
        indices = {"interp_indices": corners, "interp_weights": weights}
        indices["position_ids"] = get_vision_position_ids(grids, self.merge)
        return indices, {"cu_seqlens": get_vision_cu_seqlens(grids)}


def add_features(hidden: Tensor, places: Tensor, features: Tensor) -> Tensor:
    """Add features ``[tokens, D]`` to hidden states ``[N, S, D]`` at `places` ``[tokens]`` in ``[N S]``.

    Replaces `Qwen3VLTextModel._deepstack_process`, whose mask ``[N, S]`` makes the host wait for a GPU.
    """
    if places.dtype == torch.bool:  # a pass of transformers' own
        places = places.flatten().nonzero()[:, 0]
    return hidden.flatten(0, 1).index_add(0, places, features.to(hidden.dtype)).view_as(hidden)


@dataclass(frozen=True)
class InternVL(QwenVL):
    """InternVL 3 and 3.5: an image is cut into square tiles, with a thumbnail if there are several tiles.

    A row of `read` is a tile, and a grid ``[tiles, 1, 1]``.
    """

    placeholder = "<IMG_CONTEXT>"
    texts_around = ("<img>", "</img>")
    axes = 1

    @property
    def towers(self) -> tuple[nn.Module, ...]:
        return (self.network.model.vision_tower, self.network.model.multi_modal_projector)

    @property
    def layers(self) -> nn.ModuleList:
        return self.network.model.vision_tower.encoder.layer

    @property
    def numbers_per_row(self) -> int:
        return int(self.network.config.vision_config.num_channels * self.tile**2)

    @property
    def merge(self) -> int:
        return int(1 / self.network.config.downsample_ratio)

    @property
    def patch_size(self) -> int:
        return int(self.network.config.vision_config.patch_size[0])

    @property
    def tile(self) -> int:
        """Pixels along the side of a tile."""
        return int(self.network.config.vision_config.image_size[0])

    @property
    def patches_per_row(self) -> int:
        return (self.tile // self.patch_size) ** 2

    @property
    def smallest_grid(self) -> tuple[int, int, int]:
        return (1, 1, 1)

    @staticmethod
    def read(processor: Any, images: list[Any]) -> tuple[Tensor, Tensor]:
        # Saved processors name no tiles; transformers' InternVLProcessor asks for tiles in each call.
        prepared = processor(images=images, return_tensors="pt", crop_to_patches=True)
        tiles = torch.as_tensor(prepared["num_patches"])  # [I]
        grids = tiles[:, None] ** tiles.new_tensor([1, 0, 0])  # [I, 3], tiles x 1 x 1
        return prepared["pixel_values"].flatten(1), grids

    def features(self, patches: Tensor, grids: Tensor) -> list[Tensor]:
        tiles = patches.unflatten(1, (-1, self.tile, self.tile))
        features: Tensor = self.network.model.get_image_features(tiles).pooler_output
        return [features.flatten(0, 1)]

    @staticmethod
    def set_bounds(processor: Any, least: int | None, most: int | None) -> None:
        tile = processor.size["height"] * processor.size["width"]
        if least is not None:
            processor.min_patches = -(-least // tile)  # rounded up
        if most is not None:
            processor.max_patches = most // tile
        processor.max_patches = max(processor.max_patches, processor.min_patches)


FAMILIES = {"internvl": InternVL, "qwen2_5_vl": QwenVL, "qwen3_vl": Qwen3VL}
"""Supported families by `model_type` of transformers' configurations."""


def family_of(config: Any, name: str) -> type[QwenVL]:
    """Family of a model's configuration.

    Raises:
        UserError: the family is not supported.
    """
    if config.model_type not in FAMILIES:
        *others, last = FAMILIES
        raise UserError(
            f"Expected a model of the family {', '.join(others)} or {last}, but '{name}' is of {config.model_type}."
        )
    return FAMILIES[config.model_type]
