"""Loading models of Hugging Face transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from lightning_cgrpo.core.errors import UserError, first_line
from lightning_cgrpo.core.paths import expand_path
from lightning_cgrpo.policies.adapters import ADAPTERS, NO_PEFT
from lightning_cgrpo.policies.model_files import find_directory

SET_BY_POLICY = frozenset({"dtype", "torch_dtype", "attn_implementation", "use_safetensors", "trust_remote_code"})
"""Arguments of `from_pretrained` that `load_pretrained` sets."""


def load_pretrained(
    name: str, dtype: str | None, kind: str, check: Callable[[Any, str], object], **further: Any
) -> tuple[Any, Any]:
    """A model and its tokenizer; adapters come with their frozen base model.

    Args:
        name: a directory, ``packaged:NAME``, or a name on the hub.
        dtype: None for the saved dtype.
        kind: auto class of transformers.
        check: called with configuration and name before weights are read.
        further: arguments of `from_pretrained`; the tokenizer gets ``revision`` alone.
    """
    import transformers
    from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

    folder = expand_path(name)
    if (folder / ADAPTERS).is_file() and not (folder / "config.json").is_file():
        return _read_adapters(folder, dtype, kind, check, **further)
    revision = {"revision": further["revision"]} if "revision" in further else {}
    try:
        path = find_directory(name, **revision)
        source = str(path or name)
        options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": path is not None}
        config = AutoConfig.from_pretrained(source, **options, **revision)
        check(config, name)
        model, report = getattr(transformers, kind).from_pretrained(
            source, dtype=dtype or "auto", use_safetensors=True, output_loading_info=True, **options, **further
        )
        check_whole(report, model, name)
        tokenizer = AutoTokenizer.from_pretrained(source, **options, **revision)
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # of the hub, of transformers, or of a model's own code
        reason = first_line(error)[:200]
        raise UserError(
            f"Expected model to be a directory with a Hugging Face model, or a name on the hub, but got '{name}' "
            f"({reason}), try another name, or create a tiny model with `python -m lightning_cgrpo tiny-model DIR`."
        ) from None
    if path is not None and not _as_saved(tokenizer, path / "tokenizer.json"):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
    if hasattr(model, "peft_config"):
        # transformers has added frozen adapters, and would train and save all other weights.
        raise UserError(
            f"Expected '{name}' to be a whole model, or a directory with adapters alone, but got adapters from the hub "
            f"or beside a model, try a directory with {ADAPTERS} and adapter_model.safetensors alone."
        )
    # The name that saved adapters give their model, never a folder of the hub's cache.
    source_name = name
    if path is not None and path.parent.name != "snapshots":
        source_name = str(path.resolve())
    model.name_or_path = source_name
    model.config.name_or_path = source_name
    return model, tokenizer


def _read_adapters(folder: Path, *choice: Any, **further: Any) -> tuple[Any, Any]:
    try:
        from peft import PeftConfig, PeftModel
    except ImportError:
        raise UserError(NO_PEFT) from None
    config = PeftConfig.from_pretrained(str(folder))
    # Other kinds change the model's input too.
    if config.peft_type != "LORA":
        raise UserError(f"Expected the adapters in '{folder}' to be LoRA, but got {config.peft_type.value}.")
    if not (folder / "adapter_model.safetensors").is_file():
        raise UserError(f"Expected '{folder}' to hold adapter_model.safetensors, but there is no such file.")
    try:
        model, tokenizer = load_pretrained(str(config.base_model_name_or_path), *choice, **further)
    except UserError as error:
        raise UserError(
            f"The model of the adapters in '{folder}' can't be read, try another base_model_name_or_path in "
            f"{ADAPTERS}: {error}"
        ) from None
    return PeftModel.from_pretrained(model, str(folder), is_trainable=True), tokenizer


def _as_saved(tokenizer: Any, file: Path) -> bool:
    """True if a tokenizer encodes a probe as its file does; AutoTokenizer keeps only the vocabulary for qwen2."""
    from tokenizers import Tokenizer

    if not file.is_file():
        return True
    probe = "Tom's 14 pears cost $1,234.50.\n\n<think>3 + 4 = 7</think>  naïve 你好"
    saved: list[int] = Tokenizer.from_file(str(file)).encode(probe, add_special_tokens=False).ids
    return bool(tokenizer(probe, add_special_tokens=False).input_ids == saved)


def check_whole(report: Mapping[str, Any], model: Any, name: str) -> None:
    """Refuse files that lack some of a model's weights by transformers' `report`, which draws these at random."""
    missing = sorted(report["missing_keys"])
    if missing:
        raise UserError(
            f"Expected '{name}' to hold all weights of a {type(model).__name__}, but it lacks {len(missing)}, such as "
            f"{missing[0]}, which would be random, try the directory of a model of this kind."
        )


def check_unquantized(model: Any, name: str) -> None:
    """Refuse quantized weights, which checkpoints, merges and the comparison at loading can't read."""
    if getattr(model, "hf_quantizer", None) is not None:
        raise UserError(
            f"Expected weights without quantization, but got '{name}' with some, because checkpoints and exports write "
            "weights that a resume could not read, try lora with dtype: bfloat16."
        )


def stop_tokens(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Ids of the model's tokens that end an answer, from tokenizer and generation config."""
    size = len(model.get_input_embeddings().weight)
    configured = model.generation_config.eos_token_id
    if not isinstance(configured, (list, tuple)):
        configured = [configured]
    named = {tokenizer.eos_token_id, *configured} - {None}
    known = {token for token in named if 0 <= token < size}
    if not known:
        raise UserError(
            f"Expected the tokenizer or the generation config to name one of the model's {size} tokens that ends an "
            f"answer, but got {sorted(named) or 'none'}, try setting tokenizer.eos_token."
        )
    return tuple(sorted(known))
