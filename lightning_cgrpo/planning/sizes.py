"""Sizes of a model, built on the meta device without memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightning_cgrpo.errors import UserError, first_line
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.pretrained import ADAPTERS, directory, with_adapters
from lightning_cgrpo.policies.shared_prefix.support import obstacle, output_obstacle
from lightning_cgrpo.policies.vision_families import QwenVL, family_of
from lightning_cgrpo.policies.vision_language import VisionLanguagePolicy

VISION = {"visual", "vision_tower"}
"""Names of vision towers."""


@dataclass(frozen=True)
class Tower:
    """A stack of equal transformer layers. Counts are of one layer, without adapters.

    Args:
        gated: feed-forward layers multiply two branches (SwiGLU).
        linear: weights of linear maps.
        layer: all parameters.
        adapters: sum of the adapters' ranks.
        adapted: sum of the adapters' input widths.
    """

    layers: int
    width: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_size: int
    gated: bool
    linear: int
    layer: int
    adapters: int
    adapted: int
    adapter_weights: int


@dataclass(frozen=True)
class Vision:
    """The vision tower of a family in `vision_families`.

    Args:
        patch: numbers in a patch.
        merge: patches along a token's side.
        window: patches in an attention window.
        full: number of layers that attend to the whole image, or tile.
        mergers: heads of the tower, for embeddings and deepstack layers.
        tile: pixels along the side of a tile; 0 for images of any size.
    """

    tower: Tower
    patch: int
    patch_size: int
    merge: int
    window: int
    full: int
    parameters: int
    mergers: int
    tile: int
    family: type[QwenVL]


@dataclass(frozen=True)
class ModelSizes:
    """A model's counts, including adapters.

    Args:
        largest: numbers of the largest trainable tensor.
        element: bytes per number of the (base model's) weights.
        tied: embedding and output layer share their weight.
        obstacle: the reason against shared prompts.
        chunks: log-probabilities come from chunks of logits.
    """

    name: str
    parameters: int
    trainable: int
    weight_bytes: int
    trainable_bytes: int
    largest: int
    element: int
    vocabulary: int
    tied: bool
    trains_base: bool
    decoder: Tower
    vision: Vision | None
    context: int | None
    obstacle: str | None
    chunks: bool


def language_model_sizes(policy: CausalLMPolicy, model_config: Path | None = None, double: bool = False) -> ModelSizes:
    """Sizes of a policy before it is loaded.

    Args:
        model_config: a config.json, or its directory, instead of the model's own.
    """
    config, adapters = _configuration(policy, model_config)
    family = family_of(config, policy.name) if policy.reads_images else None
    model = _build(config, policy.dtype, policy.reads_images, policy.name)
    text = config.get_text_config()
    if any(getattr(text, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        raise UserError(f"Expected a dense model, but '{policy.name}' is a mixture of experts, which is not planned.")
    why = obstacle(model) if policy.share_prompts else "share_prompts is off"
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    if policy.lora is not None:
        model = with_adapters(model, policy.lora).get_base_model()
    elif adapters is not None:
        from peft import PeftConfig, get_peft_model

        saved = PeftConfig.from_pretrained(str(adapters))
        saved.inference_mode = False  # Training continues, as after `pretrained.read`.
        model = get_peft_model(model, saved).get_base_model()
    if double:
        model.double()
    trained = [p for p in model.parameters() if p.requires_grad]
    return ModelSizes(
        name=policy.name,
        parameters=sum(p.numel() for p in model.parameters()),
        trainable=sum(p.numel() for p in trained),
        weight_bytes=sum(p.nbytes for p in model.parameters()),
        trainable_bytes=sum(p.nbytes for p in trained),
        largest=max(p.numel() for p in trained),
        element=model.get_input_embeddings().weight.element_size(),
        vocabulary=model.get_output_embeddings().weight.shape[0],
        tied=tied,
        trains_base=policy.lora is None and adapters is None,
        decoder=_decoder(model, text),
        vision=_vision(family(model), config.vision_config) if family is not None else None,
        context=getattr(text, "max_position_embeddings", None),
        obstacle=why,
        chunks=output_obstacle(model) is None,
    )


def _build(config: Any, dtype: str | None, reads_images: bool, name: str) -> Any:
    import transformers

    kind = transformers.AutoModelForImageTextToText if reads_images else transformers.AutoModelForCausalLM
    saved = getattr(config, "dtype", None)
    wanted = getattr(torch, dtype) if dtype is not None else saved if isinstance(saved, torch.dtype) else torch.float32
    try:
        with torch.device("meta"):
            return kind.from_config(config, dtype=wanted, attn_implementation="sdpa").to(wanted)
    except (ValueError, KeyError, AttributeError) as error:
        reason = first_line(error)[:200]
        raise UserError(
            f"Expected a config.json of a model that {kind.__name__} builds for '{name}', but got "
            f"{config.model_type} ({reason})."
        ) from None


def _configuration(policy: CausalLMPolicy, given: Path | None) -> tuple[Any, Path | None]:
    if given is not None:
        return read_config(given), None
    if type(policy).load not in (CausalLMPolicy.load, VisionLanguagePolicy.load):
        policy.load()  # The policy makes a small model of its own.
        return policy.network.config, None
    folder = Path(policy.name).expanduser()
    if (folder / ADAPTERS).is_file() and not (folder / "config.json").is_file():
        base = json.loads((folder / ADAPTERS).read_text(encoding="utf-8"))["base_model_name_or_path"]
        return _config_of(base), folder
    return _config_of(policy.name), None


def _config_of(name: str) -> Any:
    from huggingface_hub.errors import HFValidationError
    from transformers import AutoConfig

    try:
        path = directory(name)
        return AutoConfig.from_pretrained(str(path or name), local_files_only=path is not None)
    except (OSError, ValueError, HFValidationError) as error:
        raise UserError(
            f"Expected the config.json of '{name}', but it can't be read ({first_line(error)}), try --model-config "
            "FILE with the config.json of the model's page on the Hugging Face hub, or --model.policy.model=DIR with "
            "it alone in DIR."
        ) from None


def read_config(path: Path) -> Any:
    """A transformers configuration from a config.json, or its directory."""
    from transformers import AutoConfig

    file = path / "config.json" if path.is_dir() else path
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or "model_type" not in content:
            raise ValueError("it names no model_type")
        return AutoConfig.for_model(**content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(
            f"Expected --model-config to be a config.json of transformers, or a directory with one, but got '{path}' "
            f"({reason})."
        ) from None


def _decoder(model: Any, text: Any) -> Tower:
    width, heads, count = int(text.hidden_size), int(text.num_attention_heads), int(text.num_hidden_layers)
    sizes = (getattr(text, name, None) for name in ("intermediate_size", "ffn_dim", "n_inner"))
    stacks = (
        module
        for name, module in model.base_model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count and not VISION & set(name.split("."))
    )
    layers = next(stacks, None)
    if layers is None:
        raise UserError(f"Expected {type(model.base_model).__name__} to have a list of {count} layers, but found none.")
    return _tower(
        layers,
        width,
        next((int(size) for size in sizes if size), 4 * width),
        heads,
        int(getattr(text, "num_key_value_heads", None) or heads),
        int(getattr(text, "head_dim", None) or width // heads),
    )


def _vision(family: QwenVL, config: Any) -> Vision:
    width, heads, layers = int(config.hidden_size), int(config.num_attention_heads), family.layers
    return Vision(
        tower=_tower(layers, width, int(config.intermediate_size), heads, heads, width // heads),
        patch=family.numbers // family.row,
        patch_size=family.patch_size,
        merge=family.merge,
        window=int(getattr(config, "window_size", 0) // family.patch_size) ** 2,
        full=len(getattr(config, "fullatt_block_indexes", layers)),
        parameters=sum(p.numel() for tower in family.towers for p in tower.parameters()),
        mergers=1 + len(getattr(config, "deepstack_visual_indexes", ())),
        tile=family.tile,
        family=type(family),
    )


def _tower(layers: nn.ModuleList, width: int, feed_forward: int, heads: int, kv_heads: int, head_size: int) -> Tower:
    parameters = dict(layers[0].named_parameters())
    lora = {name: p for name, p in parameters.items() if "lora_" in name}
    own = {name: p for name, p in parameters.items() if "lora_" not in name}
    inputs = [p for name, p in lora.items() if "lora_A" in name]
    return Tower(
        layers=len(layers),
        width=width,
        feed_forward=feed_forward,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        gated=any("gate" in name for name in own),
        linear=sum(p.numel() for p in own.values() if p.dim() == 2),
        layer=sum(p.numel() for p in own.values()),
        adapters=sum(p.shape[0] for p in inputs),
        adapted=sum(p.shape[1] for p in inputs),
        adapter_weights=sum(p.numel() for p in lora.values()),
    )
