"""The precision that a run has by default, and casts of weights under autocast (``precision: bf16-mixed``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import Accelerator, CPUAccelerator, CUDAAccelerator
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.utilities import rank_zero_info
from torch import nn

from lightning_cgrpo.policies.sharding import is_sharded
from lightning_cgrpo.policies.text_policy import TextPolicy

LARGE = 10_000_000
"""Weights of a network that CPUs compute clearly faster in bfloat16; measured at 4, 19, 42 and 135 million."""
BFLOAT16 = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
"""PyTorch's questions whether a CPU multiplies bfloat16."""


def automatic_precision(policy: object, accelerator: object) -> str:
    """The precision of a run that names none: bf16-mixed for a language model on a GPU with bfloat16, else 32-true.

    Small networks keep float32, because casts would take longer than their products save. A language model whose
    weights are float64 keeps its digits.

    Args:
        accelerator: the trainer's option.
    """
    on_gpu = accelerator in ("auto", "cuda", "gpu") and CUDAAccelerator.is_available()
    is_language_model = isinstance(policy, TextPolicy) and getattr(policy, "dtype", None) != "float64"
    if on_gpu and is_language_model and torch.cuda.is_bf16_supported(including_emulation=False):
        return "bf16-mixed"
    return "32-true"


def advise_bfloat16(policy: nn.Module, trainer: Trainer) -> None:
    """Tell a large language model in float32 that this CPU multiplies bfloat16 faster."""
    on_cpu = isinstance(trainer.accelerator, CPUAccelerator) and trainer.precision == "32-true"
    if not on_cpu or not isinstance(policy, TextPolicy):
        return
    size = sum(weight.numel() for weight in policy.parameters())
    if size < LARGE:
        return
    if any(getattr(torch.cpu, name, bool)() for name in BFLOAT16):
        rank_zero_info(
            "This CPU multiplies bfloat16: with --trainer.precision=bf16-mixed, rollouts and training took 1.15 to 1.4 "
            "times less CPU time at 19 to 135 million weights, which stay float32."
        )


def use_tf32(accelerator: Accelerator) -> None:
    """Multiply float32 matrices in TF32 on a GPU, which is several times faster, unless the program has chosen.

    A choice is any call of `torch.set_float32_matmul_precision`, also with "highest", or of its newer counterparts.
    """
    if isinstance(accelerator, CUDAAccelerator) and torch.backends.cuda.matmul.fp32_precision == "none":
        torch.set_float32_matmul_precision("high")


@contextmanager
def cast_once(device: torch.device) -> Iterator[None]:
    """Context: autocast, if it is on, casts each trained weight once. Weights must not change inside.

    Lightning turns the cache of casts off, so that each decoded token would read all float32 weights again. The cache
    is emptied at the end, because a cast made here has no gradient, and is stale after an optimizer step.
    """
    if not torch.is_autocast_enabled(device.type):
        yield
        return
    with torch.autocast(device.type, dtype=torch.get_autocast_dtype(device.type), cache_enabled=True):
        try:
            yield
        finally:
            torch.clear_autocast_cache()


Copies = dict[nn.Parameter, nn.Parameter]


@contextmanager
def without_autocast(policy: TextPolicy, copies: Copies | None = None) -> Iterator[None]:
    """Context: where autocast is on, it is off, and float32 weights are replaced by copies in its dtype.

    Passes then launch no casts, which are a seventh of a decoded token's kernels, and keep the states between layers in
    this dtype, too. The copies take the memory of autocast's cache. The parameters themselves stay as they are, because
    optimizers and wrappers for several GPUs hold them. Weights that FSDP shards stay under autocast.

    Args:
        copies: of the last context, which are written again and stay in place; by default, copies last for the context.
    """
    kind = policy.device.type
    if not torch.is_autocast_enabled(kind) or is_sharded(policy):
        yield
        return
    dtype = torch.get_autocast_dtype(kind)
    kept = {} if copies is None else copies  # by the weight, so that tied weights have one copy
    # Copies of the last context get the present weights.
    if kept:
        torch._foreach_copy_([copy.data for copy in kept.values()], [weight.data for weight in kept])
    replaced: list[tuple[dict[str, nn.Parameter | None], str, nn.Parameter]] = []
    try:
        for module in policy.modules():
            for name, weight in module._parameters.items():
                if weight is None or weight.dtype != torch.float32:
                    continue
                if weight not in kept:
                    kept[weight] = nn.Parameter(weight.detach().to(dtype), requires_grad=False)
                replaced.append((module._parameters, name, weight))
                module._parameters[name] = kept[weight]
        with torch.autocast(kind, enabled=False):
            yield
    finally:
        for parameters, name, weight in replaced:
            parameters[name] = weight


def casts_weights(trainer: Trainer | None) -> bool:
    """True if passes cast float32 weights; FSDP gathers them as bfloat16 instead."""
    return (
        trainer is not None
        and trainer.precision == "bf16-mixed"
        and not isinstance(trainer.strategy, ModelParallelStrategy)
    )


def keep_cast(frozen: nn.Module) -> None:
    """Store a frozen network's linear weights as bfloat16, as autocast casts them: equal results, less memory.

    A weight that is also an embedding stays, because autocast casts no embeddings.
    """
    embeddings = {id(module.weight) for module in frozen.modules() if isinstance(module, nn.Embedding)}
    for module in frozen.modules():
        casts = isinstance(module, nn.Linear) and module.weight.dtype == torch.float32
        if casts and id(module.weight) not in embeddings:
            module.to(torch.bfloat16)
