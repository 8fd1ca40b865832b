"""Vision-language models of Hugging Face transformers as policies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from lightning_cgrpo.core.distributed import on_host
from lightning_cgrpo.core.errors import UserError, first_line
from lightning_cgrpo.core.paths import expand_path
from lightning_cgrpo.core.rollout import NO_INPUTS
from lightning_cgrpo.policies.adapters import LoRA
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.images import ImageError, read_image
from lightning_cgrpo.policies.padded_prompts import PaddedPrompts
from lightning_cgrpo.policies.pretrained import load_pretrained
from lightning_cgrpo.policies.rendering import Messages, Tools, Variables
from lightning_cgrpo.policies.sharding import in_shards
from lightning_cgrpo.policies.shared_prefix.attention import NAME as PACKED
from lightning_cgrpo.policies.shared_prefix.attention import Attend, no_mask
from lightning_cgrpo.policies.vision_families import QwenVL, family_of

if TYPE_CHECKING:
    from transformers import DynamicCache

PLACEHOLDER = QwenVL.placeholder


class VisionLanguagePolicy(CausalLMPolicy):
    """Chooses the next token, given texts and images and the answer's earlier tokens.

    A prompt is a list of messages, whose content is a text or a list of ``{"type": "text", "text": …}`` and
    ``{"type": "image", "image": …}`` with a PIL image, an array, or the bytes of a file, see `read_image`.

    With images, rollouts have two further inputs, padded with 0: ``patches [B, L, D]`` of D numbers, and ``grids [B, I,
    3]``, each image's number of patches in time, height and width. InternVL has tiles instead of patches.

    Args:
        model: as in `CausalLMPolicy`, like the next five arguments; of a family in `vision_families.FAMILIES`.
        min_pixels: scale smaller images up to this area; None for the model's default.
        max_pixels: scale larger images down to this area. Patches of 14 pixels give area / 784 tokens. For InternVL,
            the area of all tiles except the thumbnail.
        share_prompts: as in `CausalLMPolicy`.
        image_folder: folder whose image files prompts may name by path; by default prompts name no files. Prompts
            never name URLs, because a row of a data set could then read this machine's files, or ask any server.
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
        share_prompts: bool = True,
        image_folder: str | None = None,
    ) -> None:
        super().__init__(model, temperature, dtype, lora, gradient_checkpointing, max_prompt_tokens, share_prompts)
        self.min_pixels = min_pixels
        self.max_pixels = max_pixels
        self.image_folder = image_folder
        self.image_processor: Any = None
        self.image_token = -1

    @classmethod
    def from_model(  # type: ignore[override]
        cls, model: nn.Module, tokenizer: Any, image_processor: Any, **options: Any
    ) -> VisionLanguagePolicy:
        policy = cls(type(model).__name__, dtype=None, **options)
        policy.model = model
        policy.tokenizer = tokenizer
        policy.image_processor = image_processor
        policy.load()
        return policy

    def load(self) -> None:
        self._read_once()
        if self.image_processor is None:
            self.image_processor = self._read_processor()
            self.family.set_bounds(self.image_processor, self.min_pixels, self.max_pixels)
        self.image_token = self.family.network.config.image_token_id
        self.family.prepare_network()
        super().load()

    def _read_processor(self) -> Any:
        # From its module, because some releases of transformers export it beside torchvision alone.
        from transformers.models.auto.image_processing_auto import AutoImageProcessor

        # A directory of adapters has its own settings, which determine the tokens of an image.
        folder = expand_path(self.name)
        source = folder if (folder / "preprocessor_config.json").is_file() else self.network.name_or_path
        try:
            return AutoImageProcessor.from_pretrained(source, backend="pil", trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise UserError(
                f"Expected '{source}' to hold an image processor of transformers, but got: {first_line(error)}, try "
                "the preprocessor_config.json of the model."
            ) from error

    def pretrained(self) -> tuple[Any, Any]:
        return load_pretrained(self.name, self.dtype, "AutoModelForImageTextToText", family_of)

    @property
    def family(self) -> QwenVL:
        return family_of(self.network.config, self.name)(self.network)

    # --- prompts

    def read_prompts(
        self,
        prompts: Sequence[str | Messages],
        index: Tensor | None = None,
        tools: Tools = (),
        variables: Sequence[Variables] | None = None,
    ) -> dict[str, Tensor]:
        """As in `TextPolicy`, with a placeholder per image token; with images, also `patches` and `grids`."""
        self._check_loaded()
        numbers = range(len(prompts)) if index is None else index.tolist()
        patches = []
        grids = []
        tokens = []
        for prompt, number, own in zip(prompts, numbers, variables or [{}] * len(prompts), strict=True):
            of_prompt, grid = self._image_patches(prompt, number)
            patches.append(of_prompt)
            grids.append(grid)
            text = self._expand_placeholders(self._render_prompt(prompt, number, tools, own), grid, number)
            tokens.append(self._prompt_tokens(prompt, text, number))
        inputs = self.padded(tokens)
        if any(len(grid) for grid in grids):
            inputs["patches"] = pad_sequence(patches, batch_first=True)
            inputs["grids"] = pad_sequence(grids, batch_first=True)
        return inputs

    def _image_patches(self, prompt: str | Messages, number: int) -> tuple[Tensor, Tensor]:
        """Patches ``[L, D]`` and grids ``[I, 3]`` of a prompt's images."""
        try:
            images = images_of(prompt)
            if not images:
                return torch.zeros(0, self.family.numbers_per_row), torch.zeros(0, 3, dtype=torch.int64)
            pictures = [read_image(image, self.image_folder) for image in images]
            return self.family.read(self.image_processor, pictures)
        except (ValueError, TypeError, OSError) as error:
            raise UserError(f"Expected readable images in prompt {number}, but got: {first_line(error)}.") from None

    def _expand_placeholders(self, text: str, grid: Tensor, number: int) -> str:
        token = self.family.placeholder
        before, after = self.family.texts_around
        first, *pieces = text.split(token)
        if len(pieces) != len(grid):
            raise UserError(
                f"Expected as many placeholders {token} in prompt {number} as images, {len(grid)}, but got "
                f"{len(pieces)}, because the chat template writes none, or a text holds one."
            )
        expanded = first
        for size, piece in zip(self.family.tokens(grid).tolist(), pieces, strict=True):
            expanded += before + token * size + after + piece
        return expanded

    def illustrated(self, ids: Tensor, draw: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        # Each prompt gets the smallest image.
        family = self.family
        grids = torch.tensor(family.smallest_grid, device="cpu").expand(len(ids), 1, 3)
        patches = torch.rand(
            len(ids), math.prod(family.smallest_grid), family.numbers_per_row, generator=draw, device="cpu"
        )
        image = ids.new_full((len(ids), int(family.tokens(grids)[0])), self.image_token)
        # Tokens drawn for text must not mark an image.
        text = ids.masked_fill(ids == self.image_token, int(self.image_token == 0))
        ids = torch.cat([text[:, :2], image, text[:, 2:]], 1)
        return ids, {"patches": patches.to(self.device), "grids": grids.to(self.device)}

    # --- passes

    def prompt_positions(self, ids: Tensor, lengths: Tensor, inputs: Mapping[str, Tensor]) -> Tensor | None:
        """Positions ``[3, S]`` in time, height and width, equal on all axes for text; None if all are counted."""
        if not inputs or self.family.axes == 1:
            return None
        positions = []
        host, grids = on_host(ids, inputs["grids"])
        for row, grid in zip(host.split(lengths.tolist()), grids, strict=True):
            kinds = (row == self.image_token).int()
            images = grid[grid.prod(-1) > 0]  # without padding
            axes, _ = self.network.model.get_rope_index(row[None], kinds[None], image_grid_thw=images)
            positions.append(axes[:, 0])
        return torch.cat(positions, 1).to(ids.device, non_blocking=True)

    def hidden(
        self, ids: Tensor, positions: Tensor, attend: Attend, inputs: Mapping[str, Tensor] = NO_INPUTS
    ) -> Tensor:
        embedded, deep = self._embed_tokens(ids[None], ids[None] == self.image_token, inputs)
        states = self._decoder_states(
            embedded, no_mask(ids.device), positions[:, None], use_cache=False, **deep, **{PACKED: attend}
        )
        return states[0]

    def row_positions(self, ids: Tensor, mask: Tensor, prompts: PaddedPrompts | None) -> Tensor:
        if prompts is None or self.family.axes == 1:
            return super().row_positions(ids, mask, prompts)
        rows, seen, grids, group = on_host(ids, mask, prompts.inputs["grids"], prompts.group)
        grids = grids[group]
        kinds = (rows == self.image_token).int()
        kinds[:, prompts.width :] = 0  # a placeholder in an answer is an ordinary token
        images = grids[grids.prod(-1) > 0]
        positions: Tensor
        positions, _ = self.network.model.get_rope_index(rows, kinds, image_grid_thw=images, attention_mask=seen)
        return positions.to(ids.device, non_blocking=True)

    def logits(
        self,
        ids: Tensor,
        mask: Tensor,
        keep: int,
        cache: DynamicCache | None = None,
        positions: Tensor | None = None,
        prompts: PaddedPrompts | None = None,
        states: bool = False,
    ) -> Tensor:
        if positions is None:
            positions = super().row_positions(ids, mask, prompts)[:, -ids.shape[1] :]
        if positions.dim() == 2:
            positions = positions[None]
        inputs: Mapping[str, Tensor] = NO_INPUTS
        group = None
        places = ids == self.image_token
        if prompts is not None:
            inputs = prompts.inputs
            group = prompts.group
            places[:, prompts.width :] = False  # a placeholder in an answer is an ordinary token
        embedded, options = self._embed_tokens(ids, places, inputs, group)
        if self._cache_argument is not None:
            options[self._cache_argument] = cache
        hidden = self._decoder_states(embedded, mask.long(), positions, use_cache=cache is not None, **options)
        rows = hidden[:, -keep:]
        if states:
            return rows
        # The layer itself, because a critic replaces it.
        return self.network.get_output_embeddings()(rows)

    def _decoder_states(self, embedded: Tensor, mask: Tensor, positions: Tensor, **options: Any) -> Tensor:
        """Last hidden states ``[N, S, D]`` of rows of embeddings at positions ``[1 or A, N, S]``."""
        axes = self.family.axes
        position_ids = positions[0] if axes == 1 else positions.expand(axes, -1, -1)
        output = self.network.model.language_model(
            inputs_embeds=embedded, attention_mask=mask, position_ids=position_ids, **options
        )
        return output.last_hidden_state

    def _embed_tokens(
        self, ids: Tensor, places: Tensor, inputs: Mapping[str, Tensor], group: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Embeddings ``[N, S, D]`` of tokens and images, and the decoder's arguments for deepstack.

        Args:
            places: ``[N, S]`` bool, the images' tokens come first among these.
            group: each row's prompt among the inputs; by default the rows hold every prompt once.
        """
        embedded = self.network.get_input_embeddings()(ids)
        grids = on_host(inputs["grids"])[0] if inputs else None
        if grids is None or not bool(grids.any()):
            nothing = self._no_images()
            if nothing is not None:
                embedded = embedded + nothing
            return embedded, {}
        first, *deep = self._image_features(inputs["patches"], grids, group)
        # Prompts come first; a placeholder in an answer is an ordinary token. A sort needs no wait, unlike `nonzero`.
        index = places.flatten().int().argsort(descending=True, stable=True)[: len(first), None]
        flat = embedded.flatten(0, 1)  # [N S, D]
        embedded = flat.scatter(0, index.expand(-1, flat.shape[1]), first.to(flat.dtype)).view_as(embedded)
        if not deep:
            return embedded, {}
        # `vision_families.add_features` takes places instead of a mask.
        return embedded, {"visual_pos_masks": index[:, 0], "deepstack_visual_embeds": deep}

    def _image_features(self, patches: Tensor, grids: Tensor, group: Tensor | None = None) -> list[Tensor]:
        """Features of all images' tokens, ``[tokens, hidden size]`` each, see `QwenVL.features`.

        Args:
            patches: of B prompts, ``[B, L, D]``.
            grids: ``[B, I, 3]``, on the CPU.
            group: ``[N]``, prompts in the order of the rows; by default each prompt once.
        """
        # Padding is left out of the patches, and of the grids.
        sizes = grids.prod(-1)  # [B, I]
        is_patch = torch.arange(patches.shape[1], device="cpu") < sizes.sum(-1, keepdim=True)  # [B, L]
        index = is_patch.flatten().nonzero()[:, 0].to(patches.device, non_blocking=True)
        features = self.family.features(patches.flatten(0, 1)[index], grids[sizes > 0])
        if group is None:
            return features
        # Features of a prompt's images are copied for each row of the prompt.
        prompts = on_host(group)[0].tolist()
        tokens = self.family.tokens(grids).sum(-1).tolist()
        copied = []
        for part in features:
            of_prompt = part.split(tokens)
            copied.append(torch.cat([of_prompt[prompt] for prompt in prompts]))
        return copied

    def _no_images(self) -> Tensor | None:
        """A scalar 0 that depends on the vision tower's parameters, for passes without images; None if not needed."""
        family = self.family
        if in_shards(family.layers[0]):
            # The smallest image, because all processes gather the tower's layers together.
            grids = torch.tensor([[family.smallest_grid]], device="cpu")
            patches = torch.zeros(1, math.prod(family.smallest_grid), family.numbers_per_row, device=self.device)
            parts = self._image_features(patches, grids)
            return torch.stack([part.sum() for part in parts]).sum() * 0
        if not torch.is_grad_enabled():
            return None
        sums = []
        for tower in family.towers:
            sums += [weight.sum() for weight in tower.parameters() if weight.requires_grad]
        return torch.stack(sums).sum() * 0 if sums else None

    def save_pretrained(
        self, directory: str | Path, merge: bool = False, weights: Mapping[str, Tensor] | None = None
    ) -> None:
        super().save_pretrained(directory, merge, weights)
        self.image_processor.save_pretrained(directory)


def images_of(prompt: str | Messages) -> list[Any]:
    """Images in a prompt's messages, in order.

    Raises:
        ImageError: a part of a message is no text and no image, which a chat template would skip.
    """
    if isinstance(prompt, str):
        return []
    parts = []
    for message in prompt:
        if isinstance(message["content"], list):
            parts += message["content"]
    images = []
    for part in parts:
        if part["type"] == "image":
            if part.get("image") is None:
                raise ImageError(f"a part of type 'image' has no 'image', but {', '.join(part)}")
            images.append(part["image"])
        elif part["type"] != "text":
            raise ImageError(f"a part of a message has the type '{part['type']}', not 'text' or 'image'")
    return images
