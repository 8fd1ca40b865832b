"""The subject of a certificate: the policy, everything that turns it into answers and signals, and the prompts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor, uint8

from lightning_cgrpo.callbacks.run_manifest import named_files
from lightning_cgrpo.cli.loading import instantiate, prompts_digest_of, with_defaults
from lightning_cgrpo.datamodules.base import GeneratedDataModule, GroupDataModule
from lightning_cgrpo.policies.model_files import find_model_folder
from lightning_cgrpo.policies.policy import Policy
from lightning_cgrpo.run.fingerprints import file_fingerprints
from lightning_cgrpo.run.reads import reads_in
from lightning_cgrpo.samplers.sampler import Sampler
from lightning_cgrpo.settings.configuration import Config, Resolved, get
from lightning_cgrpo.settings.effects import PROMPTS_PLACES, SAME_TEST_PROMPTS, Effect, effect_of
from lightning_cgrpo.settings.settings import Settings, settings_of
from lightning_cgrpo.tasks.task import Task

PARTS: dict[str, type] = {"policy": Policy, "sampler": Sampler, "task": Task}
MODEL = "policy.model"
"""A folder or a hub's name, which tells less than the content of its files."""


def identity(weights: Mapping[str, Tensor], measuring: Any) -> str:
    """Equal text for equal policies that are measured alike.

    Args:
        measuring: see `measuring`.
    """
    digest = hashlib.sha256(json.dumps(measuring, sort_keys=True, default=str).encode())
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(uint8).numpy().data)
    return digest.hexdigest()[:32]


def measuring(config: Config, base: str | None) -> dict[str, Any]:
    """Everything beside the weights that decides answers and signals: settings with defaults, code and small files.

    Args:
        base: fingerprint of the base weights that the checkpoint lacks.
    """
    model_config = get(config, "model.init_args") or {}
    kinds = {name: kind for name, kind in PARTS.items() if name in model_config}
    settings = settings_of(with_defaults(model_config, **kinds))
    if not settings.get("sampler.stop"):  # since November 28, 2026; without it, a policy keeps its older identity
        settings.pop("sampler.stop", None)
    # A setting that changes only speed and rounding makes no other policy.
    settings = {key: value for key, value in settings.items() if effect_of(f"model.{key}") is not Effect.COMPUTATION}

    # A model's name tells less than the content of its files.
    model = settings.pop(MODEL, None)
    reads = reads_in(settings)
    files = named_files(settings) | reads.files
    folder = find_model_folder(model) if isinstance(model, str) else None
    if folder is not None:
        files |= file_fingerprints(folder)
    return {
        "settings": settings,
        "code": reads.code,
        "variables": reads.variables,
        "versions": reads.versions,
        "files": files,
        "base": base,
    }


def precision_of(config: Config) -> str:
    """The precision in which a command answers, by its settings and by the kind of this machine."""
    named = get(config, "trainer.precision")
    if named not in (None, "auto"):
        return str(named)
    on_gpu = get(config, "trainer.accelerator") in ("auto", "cuda", "gpu") and torch.cuda.is_available()
    return "of a GPU" if on_gpu else "32-true"


def data_of(config: Resolved) -> tuple[Settings, str | None]:
    """The settings of the data that decide the test prompts, and a digest of the prompts if they are in memory.

    With a digest, the settings of the prompts' place are left out.
    """
    filled = with_defaults(config, data=LightningDataModule)
    data = instantiate(config, data=LightningDataModule)["data"]
    digest = None
    if isinstance(data, GroupDataModule) and not isinstance(data, GeneratedDataModule):
        digest = prompts_digest_of(data, "test")
    left_out = SAME_TEST_PROMPTS if digest is None else (*SAME_TEST_PROMPTS, *PROMPTS_PLACES)
    settings = settings_of(config.environment.fingerprinted(filled))
    return {key: value for key, value in settings.items() if key not in left_out}, digest
