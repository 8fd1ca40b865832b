"""Reading and writing models of Hugging Face transformers."""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_cgrpo.core.errors import UserError, expect, first_line, installing
from lightning_cgrpo.core.json_client import hub_answers
from lightning_cgrpo.core.paths import expanded
from lightning_cgrpo.core.randomness import random_weights, run_seed
from lightning_cgrpo.policies.policy import Origin

ADAPTERS = "adapter_config.json"
NO_PEFT = f"Expected peft to be installed for lora, but it is not, try {installing('lora')}."
MERGES = "unload_and_optionally_merge_module"
"""The method of some of peft's layers that makes the layer without adapters."""
PACKAGED = Path(__file__).parents[1] / "models"
PREFIX = "packaged:"
SET_BY_POLICY = frozenset({"dtype", "torch_dtype", "attn_implementation", "use_safetensors", "trust_remote_code"})
"""Arguments of `from_pretrained` that `load_pretrained` sets."""


@dataclass(frozen=True)
class LoRA:
    """Low-rank adapters (Hu et al., 2022): only A and B of W + alpha / rank B A are trained, with B initially 0.

    Args:
        rank: rows of A and columns of B.
        target_modules: names of adapted layers; "all-linear" omits the output layer.
        seed: of the random A, by default Lightning's seed.
    """

    rank: int = 16
    alpha: int = 32
    target_modules: str | list[str] = "all-linear"
    seed: int | None = None

    def __post_init__(self) -> None:
        # At once, and not after a large model was loaded.
        expect(self.rank >= 1, "lora.rank", "at least 1", self.rank)


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

    folder = expanded(name)
    if (folder / ADAPTERS).is_file() and not (folder / "config.json").is_file():
        return _read_adapters(folder, dtype, kind, check, **further)
    revision = {"revision": further["revision"]} if "revision" in further else {}
    try:
        path = directory(name, **revision)
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
    local = path is not None and path.parent.name != "snapshots"
    model.name_or_path = model.config.name_or_path = str(path.resolve()) if path is not None and local else name
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


def write(
    model: Any, tokenizer: Any, folder: str | Path, merge: bool = False, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Write a model and its tokenizer for transformers; adapters alone, in peft's format.

    Args:
        merge: write all weights with the adapters added.
        weights: written instead of the model's own.
    """
    if hasattr(model, "merge_and_unload") and not merge:
        # Otherwise peft asks the hub whether the embeddings are the base model's.
        model.save_pretrained(str(folder), save_embedding_layers=False, state_dict=weights)
        _move_up(Path(folder), model.active_adapters)
    else:
        merged(model, weights).save_pretrained(folder, state_dict=weights)
    tokenizer.save_pretrained(folder)


def _move_up(folder: Path, adapters: Sequence[str]) -> None:
    """Move the adapters' files from the subfolder that peft makes for adapters of another name than "default".

    Raises:
        UserError: several adapters are active.
    """
    if len(adapters) > 1:
        raise UserError(
            f"Expected one active adapter to write, but got {', '.join(adapters)}, try model.set_adapter of one."
        )
    (name,) = adapters
    if name == "default":
        return
    for file in (folder / name).iterdir():
        file.replace(folder / file.name)
    (folder / name).rmdir()


def merged(model: Any, weights: Mapping[str, Tensor] | None = None) -> Any:
    """The model, or a copy with its adapters added to the weights; raises as `_check_mergeable`."""
    if not hasattr(model, "merge_and_unload"):
        return model
    _check_mergeable(model, weights)
    return copy.deepcopy(model).merge_and_unload()


def _check_mergeable(model: Any, weights: Mapping[str, Tensor] | None) -> None:
    """Refuse to add adapters to weights.

    Raises:
        UserError: the model is sharded (`weights` are given), or layers share an adapted weight.
    """
    if weights is not None:
        raise UserError(
            "Expected adapters to be written alone where the policy is sharded, but they are to be merged, try "
            "strategy: ddp, or merge later (`python -m lightning_cgrpo export --merge`)."
        )
    _check_own_weights(model.get_base_model())


def _check_own_weights(network: Any) -> None:
    """Refuse adapters on a weight that another layer reads without them, such as tied embeddings."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    readers: Counter[int] = Counter()
    for module in network.modules():
        readers.update(id(weight) for weight in module._parameters.values() if weight is not None)
    for name, adapted in network.named_modules():
        if isinstance(adapted, BaseTunerLayer) and readers[id(_adapted_weight(adapted))] > 1:
            raise UserError(
                f"Expected adapters on weights of one layer to merge, but got '{name}', whose weight other layers "
                "share, try writing the adapters alone (without --merge), or other lora.target_modules."
            )


def _adapted_weight(adapted: Any) -> Tensor:
    """The weight that a layer of peft's adapts; a mixture of experts has several, each with a wrapper of its own."""
    return adapted.get_param() if hasattr(adapted, "get_param") else adapted.get_base_layer().weight


def written_tensors(model: Any, weights: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The tensors that `write` with `merge` writes, by their names in the file.

    Without adapters, they are no copies; weights with adapters are copied to the CPU. The steps are those of
    transformers' `save_pretrained`.
    """
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    network, tensors = model, weights
    if hasattr(model, "merge_and_unload"):
        _check_mergeable(model, weights)
        network = model.get_base_model()
        tensors = _merged_by_layer(network)
    if tensors is None:
        tensors = network.state_dict()
    ignored = set(network._keys_to_ignore_on_save or ())
    kept = {name: tensor.detach() for name, tensor in tensors.items() if name not in ignored}
    untied = remove_tied_weights_from_state_dict(kept, network)
    return revert_weight_conversion(network, untied)


def _merged_by_layer(network: Any) -> dict[str, Tensor]:
    """A network's state without adapters; weights with adapters are merged in a copy of one layer at a time.

    So a GPU needs room for one more layer, not for one more network.
    """
    adapted: dict[str, Any] = {}  # the outermost of peft's layers, by name
    for name, module in network.named_modules():
        if not _lies_in(name, adapted) and (hasattr(module, MERGES) or hasattr(module, "base_layer")):
            adapted[name] = module
    tensors = {name: tensor for name, tensor in network.state_dict().items() if not _lies_in(name, adapted)}
    for name, layer in adapted.items():
        for part, tensor in _merged_layer(copy.deepcopy(layer)).state_dict().items():
            tensors[f"{name}.{part}"] = tensor.cpu()
    return tensors


def _lies_in(name: str, modules: Iterable[str]) -> bool:
    return any(name.startswith(f"{module}.") for module in modules)


def _merged_layer(layer: Any) -> nn.Module:
    """A layer of peft's with its adapters added, as `merge_and_unload` of a whole model replaces it."""
    if hasattr(layer, MERGES):
        merged_layer: nn.Module = getattr(layer, MERGES)(merge=True, safe_merge=False, adapter_names=None)
        return merged_layer
    layer.merge()
    base: nn.Module = layer.get_base_layer()
    return base


def directory(name: str, revision: str | None = None) -> Path | None:
    """Local directory of a model (the cache if the hub does not answer); None for a model of the hub.

    Raises:
        OSError: the model is neither here nor reachable.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    if name.startswith(PREFIX):
        models = sorted(folder.name for folder in PACKAGED.iterdir())
        if name.removeprefix(PREFIX) not in models:
            raise FileNotFoundError(f"the package has the models {', '.join(PREFIX + model for model in models)}")
        return PACKAGED / name.removeprefix(PREFIX)
    path = expanded(name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise FileNotFoundError("the directory has no config.json")
        return path
    if path.suffix == ".gguf":
        convert = f"AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file='{path.name}').save_pretrained(DIRECTORY)"
        raise FileNotFoundError(f"convert GGUF: {convert}, and its tokenizer")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise FileNotFoundError("there is no such directory")
    if hub_answers():
        return None
    try:  # the cache at once, because the hub's client would retry for minutes first
        return Path(snapshot_download(name, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        raise FileNotFoundError("there is no such directory, and the hub does not answer") from None


def located(name: str, revision: str | None = None) -> Path | None:
    """Local directory of a model or of adapters, as `directory`."""
    folder = expanded(name)
    return folder if (folder / ADAPTERS).is_file() else directory(name, revision)


def origin(name: str, revision: str | None = None) -> Origin:
    """Origin of a model or of adapters; models of the hub must be in the cache."""
    from huggingface_hub import snapshot_download

    folder = located(name, revision) or Path(snapshot_download(name, revision=revision, local_files_only=True))
    return Origin(name, str(folder.resolve()), fingerprint(folder))


def fingerprint(folder: Path) -> str:
    """12 hexadecimal digits from names and content of a directory's .safetensors files, or of one file."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")) if folder.is_dir() else [folder]:
        digest.update(file.name.encode())
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:12]


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
    if missing := sorted(report["missing_keys"]):
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
    several = configured if isinstance(configured, (list, tuple)) else [configured]
    named = {tokenizer.eos_token_id, *several} - {None}
    known = {token for token in named if 0 <= token < size}
    if not known:
        raise UserError(
            f"Expected the tokenizer or the generation config to name one of the model's {size} tokens that ends an "
            f"answer, but got {sorted(named) or 'none'}, try setting tokenizer.eos_token."
        )
    return tuple(sorted(known))


def at_least_float32(tensor: Tensor) -> Tensor:
    """Cast half precision to float32."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def recomputable_layers(model: Any) -> list[nn.Module]:
    """Layers of decoder and vision tower that can recompute their activations."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]


def recompute_activations(model: Any) -> None:
    """Make layers recompute their activations in the backward pass.

    Transformers would do it for layers in training mode, whose dropout would then act.
    """
    for layer in recomputable_layers(model):
        layer.forward = MethodType(_recomputed, layer)  # a copy of the layer has a method of its own


def _recomputed(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    forward = partial(type(layer).forward, layer)
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def with_adapters(model: Any, lora: LoRA) -> Any:
    """The model, frozen, with new trainable adapters."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise UserError(NO_PEFT) from None
    if hasattr(model, "peft_config"):
        raise UserError(
            f"Expected a model without adapters for lora, but got '{model.name_or_path}' with some, try removing "
            "lora to train these adapters, or merge them first (`python -m lightning_cgrpo export --merge`)."
        )
    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=lora.target_modules, lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    # peft moves the adapters to their layers' device afterwards
    with random_weights(run_seed(lora.seed)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")  # peft reads it
        try:
            return get_peft_model(model, config)
        except ValueError as error:  # no layer of these names
            raise UserError(
                f"Expected lora.target_modules to name layers of '{model.name_or_path}', but got {lora.target_modules} "
                f"({first_line(error)}), try all-linear."
            ) from None
