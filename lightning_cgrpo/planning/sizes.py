"""A model's sizes, from its configuration: built on the meta device, where tensors have shapes and no memory."""

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
from lightning_cgrpo.policies.shared_prefix.support import obstacle
from lightning_cgrpo.policies.vision_language import VisionLanguagePolicy


@dataclass(frozen=True)
class Tower:
    """A stack of transformer layers, all alike.

    Args:
        layers: L.
        width: D, of the residual stream.
        feed_forward: F.
        heads: H, of queries.
        kinds: K, heads of keys and values.
        head_size: d.
        gated: whether the feed-forward layers multiply two branches (SwiGLU), or have one.
        linear: weights of one layer's linear maps, adapters left out.
        layer: all parameters of one layer, adapters left out.
        adapters: numbers that adapters of one layer keep per token, the sum of their ranks.
        adapted: likewise the sum of the widths of what adapters read.
        adapter_weights: parameters of one layer's adapters.
    """

    layers: int
    width: int
    feed_forward: int
    heads: int
    kinds: int
    head_size: int
    gated: bool
    linear: int
    layer: int
    adapters: int = 0
    adapted: int = 0
    adapter_weights: int = 0


@dataclass(frozen=True)
class Vision:
    """The vision tower of Qwen2.5-VL.

    Args:
        tower: its layers.
        patch: numbers of a patch of pixels.
        patch_size: pixels along its sides.
        merge: patches along the sides of a token.
        window: patches of a window, in which all layers but `full` attend.
        full: layers that attend to the whole image.
        parameters: of the tower with embedding and merger.
    """

    tower: Tower
    patch: int
    patch_size: int
    merge: int
    window: int
    full: int
    parameters: int


@dataclass(frozen=True)
class ModelSizes:
    """What is counted of a model.

    Args:
        name: as the configuration has it.
        parameters: all, adapters included.
        trainable: those that get a gradient.
        weight_bytes: of all parameters.
        trainable_bytes: of those that get a gradient, and so of the gradients.
        largest: numbers of the largest trainable tensor.
        element: bytes of one number of the weights (of the base model's, where there are adapters).
        vocabulary: V.
        tied: whether the output layer's weight is the embedding's.
        trains_base: whether the weights of the base model are trained, not adapters alone.
        decoder: the language model's layers.
        vision: of a vision-language model.
        context: positions, for prompt and answer; None if the model does not say.
        obstacle: why answers can't share their prompt's computation, see `shared_prefix`; None if they can.
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


def language_model_sizes(policy: CausalLMPolicy, model_config: Path | None = None, double: bool = False) -> ModelSizes:
    """Sizes of a policy that isn't loaded.

    Args:
        policy: names the model, its dtype and adapters.
        model_config: a config.json, or a directory with one, in the place of the model.
        double: all weights are made float64, whatever the policy's dtype, as Lightning does under 64-true.

    Raises:
        UserError: there is no such configuration, or transformers doesn't know it, or it is no dense causal model.
    """
    config, adapters = _configuration(policy, model_config)
    model = build(config, policy.dtype, policy.reads_images, policy.name)
    text = config.get_text_config()
    if any(getattr(text, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        raise UserError(f"Expected a dense model, but '{policy.name}' is a mixture of experts, which is not planned.")
    why = obstacle(model) if policy.share_prompts else "share_prompts is off"
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    if policy.lora is not None:
        model = with_adapters(model, policy.lora).get_base_model()
    elif adapters is not None:
        model = _with_saved_adapters(model, adapters)
    if double:
        model.double()
    trained = [p for p in model.parameters() if p.requires_grad]
    has_adapters = policy.lora is not None or adapters is not None
    return ModelSizes(
        name=policy.name,
        parameters=sum(p.numel() for p in model.parameters()),
        trainable=sum(p.numel() for p in trained),
        weight_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
        trainable_bytes=sum(p.numel() * p.element_size() for p in trained),
        largest=max(p.numel() for p in trained),
        element=model.get_input_embeddings().weight.element_size(),
        vocabulary=model.get_output_embeddings().weight.shape[0],
        tied=tied,
        trains_base=not has_adapters,
        decoder=_decoder(model, text),
        vision=_vision(model, config.vision_config) if policy.reads_images else None,
        context=getattr(text, "max_position_embeddings", None),
        obstacle=why,
    )


def build(config: Any, dtype: str | None, reads_images: bool, name: str) -> Any:
    """The transformers model of a configuration, on the meta device.

    Raises:
        UserError: transformers has no such model.
    """
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
    """The model's configuration, and the directory of the adapters that the policy starts from, if it does."""
    if given is not None:
        return read_config(given), None
    if type(policy).load not in (CausalLMPolicy.load, VisionLanguagePolicy.load):
        policy.load()  # it makes a model of its own, which is small
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
        reason = first_line(error)
        raise UserError(
            f"Expected the config.json of '{name}', but it can't be read ({reason}), try --model-config FILE with the "
            "config.json of the model's page on the Hugging Face hub, or --model.policy.model=DIR with it alone in DIR."
        ) from None


def read_config(path: Path) -> Any:
    """A transformers configuration from a config.json, or a directory with one.

    Raises:
        UserError: there is none, or transformers doesn't know its model_type.
    """
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


def _with_saved_adapters(model: Any, folder: Path) -> Any:
    from peft import PeftConfig, get_peft_model

    config = PeftConfig.from_pretrained(str(folder))
    config.inference_mode = False  # as `pretrained.read` goes on training them
    return get_peft_model(model, config).get_base_model()


def _decoder(model: Any, text: Any) -> Tower:
    width, heads = int(text.hidden_size), int(text.num_attention_heads)
    feed_forward = next(
        (int(size) for name in ("intermediate_size", "ffn_dim", "n_inner") if (size := getattr(text, name, None))),
        4 * width,
    )
    return _tower(
        _stack(model.base_model, int(text.num_hidden_layers)),
        width,
        feed_forward,
        heads,
        int(getattr(text, "num_key_value_heads", None) or heads),
        int(getattr(text, "head_dim", None) or width // heads),
    )


def _stack(model: nn.Module, layers: int) -> nn.ModuleList:
    """The decoder's layers: the list of that many modules which isn't in a vision tower."""
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == layers and "visual" not in name.split("."):
            return module
    raise UserError(f"Expected {type(model).__name__} to have a list of {layers} layers, but found none.")


def _vision(model: Any, config: Any) -> Vision:
    visual = model.model.visual
    width, heads = int(config.hidden_size), int(config.num_heads)
    return Vision(
        tower=_tower(visual.blocks, width, int(config.intermediate_size), heads, heads, width // heads),
        patch=int(config.in_channels * config.temporal_patch_size * config.patch_size**2),
        patch_size=int(config.patch_size),
        merge=int(config.spatial_merge_size),
        window=int(config.window_size // config.patch_size) ** 2,
        full=len(config.fullatt_block_indexes),
        parameters=sum(p.numel() for p in visual.parameters()),
    )


def _tower(layers: nn.ModuleList, width: int, feed_forward: int, heads: int, kinds: int, head_size: int) -> Tower:
    first = layers[0]
    adapters = [p for name, p in first.named_parameters() if "lora_A" in name]
    own = {name: p for name, p in first.named_parameters() if "lora_" not in name}
    return Tower(
        layers=len(layers),
        width=width,
        feed_forward=feed_forward,
        heads=heads,
        kinds=kinds,
        head_size=head_size,
        gated=any("gate" in name for name in own),
        linear=sum(p.numel() for p in own.values() if p.dim() == 2),
        layer=sum(p.numel() for p in own.values()),
        adapters=sum(p.shape[0] for p in adapters),
        adapted=sum(p.shape[1] for p in adapters),
        adapter_weights=sum(p.numel() for name, p in first.named_parameters() if "lora_" in name),
    )
