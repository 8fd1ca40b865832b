"""Writing models for transformers: adapters alone, or merged into the weights."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lightning_cgrpo.core.errors import UserError

MERGES = "unload_and_optionally_merge_module"
"""The method of some of peft's layers that makes the layer without adapters."""


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
        merged_model(model, weights).save_pretrained(folder, state_dict=weights)
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


def merged_model(model: Any, weights: Mapping[str, Tensor] | None = None) -> Any:
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

    network = model
    tensors = weights
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
