"""Low-rank adapters: their settings, and a model that gets new ones."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from lightning_cgrpo.core.errors import UserError, expect, first_line, install_command
from lightning_cgrpo.core.randomness import random_weights, run_seed

ADAPTERS = "adapter_config.json"
"""The file by which a directory holds adapters."""
NO_PEFT = f"Expected peft to be installed for lora, but it is not, try {install_command('lora')}."


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
