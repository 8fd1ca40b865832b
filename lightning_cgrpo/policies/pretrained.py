"""Models of Hugging Face transformers, read and prepared for training. Imports transformers and peft where used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class LoRA:
    """Low-rank adapters (Hu et al., 2022), W + alpha / rank B A: the only parameters that are then trained.

    Args:
        rank: rows of A and columns of B.
        alpha: scale of the update.
        target_modules: names of the linear layers that get one, or "all-linear": all but the output layer.
        seed: of the random A; B starts at 0, so that the initial policy is the base model.
    """

    rank: int = 16
    alpha: int = 32
    target_modules: str | list[str] = "all-linear"
    seed: int = 0


def read(name: str, dtype: str | None) -> tuple[Any, Any]:
    """A model and its tokenizer, from a directory or the hub.

    Raises:
        OSError: in one line, why not.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

    path = Path(name).expanduser()
    local = path.is_dir()
    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": local}
    source = str(path) if local else name
    try:
        if not local and (name.startswith((".", "/", "~")) or name.count("/") > 1):
            raise FileNotFoundError("there is no such directory")
        if local and not (path / "config.json").is_file():
            raise FileNotFoundError("the directory has no config.json")
        # sdpa, since eager attention gives NaN for left padding in float64.
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype or "auto", attn_implementation="sdpa", use_safetensors=True, **options
        )
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
    except OSError as error:
        reason = str(error).strip().split("\n")[0]
        raise OSError(
            f"Expected model to be a directory with a Hugging Face model, or a name on the hub, but got '{name}' "
            f"({reason}), try another one, or create a tiny one with `python -m lightning_cgrpo tiny-model DIR`."
        ) from None
    if local and not _as_saved(tokenizer, path / "tokenizer.json"):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
    return model, tokenizer


def _as_saved(tokenizer: Any, file: Path) -> bool:
    """Whether it splits text as its file says.

    For some model types (qwen2) AutoTokenizer builds a tokenizer of its own around the file's vocabulary, which differs
    silently (other ids, or none) if the file is not from that family.
    """
    from tokenizers import Tokenizer

    if not file.is_file():
        return True
    probe = "Tom's 14 pears cost $1,234.50.\n\n<think>3 + 4 = 7</think>  naïve 你好"
    saved: list[int] = Tokenizer.from_file(str(file)).encode(probe, add_special_tokens=False).ids
    return bool(tokenizer(probe, add_special_tokens=False).input_ids == saved)


def stop_tokens(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """The tokens that end an answer: the tokenizer's, and those of the generation config.

    Raises:
        ValueError: there is none.
    """
    configured = model.generation_config.eos_token_id
    named = {tokenizer.eos_token_id, *(configured if isinstance(configured, (list, tuple)) else [configured])} - {None}
    if not named:
        raise ValueError(
            "Expected the tokenizer or the generation config to name a token that ends an answer, but neither does, "
            "try setting tokenizer.eos_token."
        )
    return tuple(sorted(named))


def enable_checkpointing(model: Any) -> list[nn.Module]:
    """The layers that recompute themselves when their flag `training` says so."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    model.activation_checkpointing_enable({"use_reentrant": False})
    layers: list[nn.Module] = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
    for layer in layers:
        # A few families (OPT) apply dropout in the layer itself, which that flag would switch on.
        for name, value in vars(layer).items():
            if "dropout" in name and isinstance(value, float):
                setattr(layer, name, 0.0)
    return layers


def with_adapters(model: Any, lora: LoRA) -> Any:
    """The model, frozen, with trainable adapters in it."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ModuleNotFoundError(
            'Expected peft to be installed for lora, but it is not, try `pip install "lightning_cgrpo[lora]"`.'
        ) from None
    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=lora.target_modules, lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lora.seed)
        return get_peft_model(model, config)
