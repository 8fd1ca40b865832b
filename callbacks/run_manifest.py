"""The callback that keeps a run's manifest in its checkpoints, and tells what a resume changes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only

from lightning_cgrpo import __version__
from lightning_cgrpo.callbacks.log_writers import run_folder
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.manifest.fingerprints import (
    code_fingerprints,
    file_fingerprint,
    file_fingerprints,
    source_fingerprints,
)
from lightning_cgrpo.core.manifest.manifest import KEY, Manifest, differences, shown
from lightning_cgrpo.core.manifest.settings import Settings, differing, import_paths
from lightning_cgrpo.core.output import write_whole
from lightning_cgrpo.core.prompts.source import PromptLoader, PromptSource
from lightning_cgrpo.datamodules.base import GroupDataModule, Split
from lightning_cgrpo.policies.pretrained import fingerprint

FILE = "manifest.json"
EVALUATED = ("model.policy", "model.sampler", "model.task", "model.objective")
"""Beginnings of the keys that an evaluation depends on."""
ADAPTING = "LagrangianCallback"
LIBRARIES = (
    "torch",
    "lightning",
    "transformers",
    "tokenizers",
    "numpy",
    "peft",
    "gymnasium",
    "minigrid",
    "mujoco",
    "highway_env",
)
"""Libraries that compute."""

rank_zero_print = rank_zero_only(print)


class RunManifest(Callback):
    """Keeps the `Manifest` in every checkpoint, and beside them as ``manifest.json``.

    A resume prints every difference to the checkpoint's manifest in a line, and refuses those that training cannot
    continue from: another optimizer, another schedule of the learning rate, another callback of the multipliers.

    Args:
        settings: of the configuration, from `settings_of`; None for a run from Python.
    """

    changes_learning = False

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings
        self.manifest: Manifest | None = None

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        before = Manifest.of(checkpoint)
        if trainer.state.fn != "fit":
            self._tell_evaluation(trainer, pl_module, before)
            return
        self.manifest = self._made(trainer, pl_module)
        if before is None:
            rank_zero_print("The checkpoint has no manifest, so what differs from its run is not known.")
            return
        if before.settings is not None and self.settings is not None:
            check_continuable(before.settings, self.settings)
        self.manifest = self.manifest.continuing(before)
        for line in differences(before, self.manifest):
            rank_zero_print(f"from update {checkpoint['global_step']:,}: {line}")

    def _tell_evaluation(self, trainer: Trainer, pl_module: LightningModule, before: Manifest | None) -> None:
        """Print what differs of the evaluated policy from what trained it."""
        if before is None:
            return
        now = self._made(trainer, pl_module, splits=())
        for line in differences(_of_policy(before), _of_policy(now)):
            rank_zero_print(f"not as in training: {line}")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.manifest is None:
            made = self._made(trainer, pl_module)
            self.manifest = replace(made, lineage=(made.name,))
        folder = run_folder(trainer)
        if trainer.is_global_zero:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / FILE, json.dumps(self.manifest.readable(), indent=1) + "\n")

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self.manifest is not None:
            checkpoint[KEY] = self.manifest.state()

    def _made(self, trainer: Trainer, pl_module: LightningModule, splits: Sequence[str] = ("train", "val")) -> Manifest:
        settings = self.settings or {}
        sizes, prompts = {}, {}
        for split, source in _sources(trainer, splits):
            sizes[split] = len(source)
            fingerprints = source_fingerprints(source) if trainer.is_global_zero else None
            if fingerprints is not None:
                prompts[split] = fingerprints
        start = {}
        origin = getattr(getattr(pl_module, "policy", None), "origin", None)
        if origin is not None:
            start = {"weights": origin.fingerprint} | file_fingerprints(Path(origin.path))
        # The policy's model is the start, and prompts tell more than their files. Callbacks name files that they write.
        read = ("model.",) if prompts else ("model.", "data.")
        others = {key: value for key, value in settings.items() if key.startswith(read) and key != "model.policy.model"}
        return Manifest(
            settings=self.settings,
            sizes=sizes,
            prompts=prompts,
            code=code_fingerprints(import_paths(settings)),
            start=start,
            files=_named_files(others) if trainer.is_global_zero else {},
            machine={"processes": str(trainer.world_size), "device": _device_name(pl_module.device)},
            versions={"lightning_cgrpo": __version__, **_versions()},
        )


def _versions() -> dict[str, str]:
    """Versions of the installed `LIBRARIES`; which of them are imported by now differs between equal runs."""
    installed = {}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _of_policy(manifest: Manifest) -> Manifest:
    """The part of a manifest on which an evaluation depends."""
    settings = None
    if manifest.settings is not None:
        settings = {key: value for key, value in manifest.settings.items() if key.startswith(EVALUATED)}
    files = {key: value for key, value in manifest.files.items() if key.startswith(EVALUATED)}
    return Manifest(settings, code=manifest.code, start=manifest.start, files=files)


def _named_files(settings: Settings) -> dict[str, str]:
    """Fingerprints of the files and models that settings name, by setting."""
    found = {}
    for key, value in settings.items():
        path = os.path.expanduser(value) if isinstance(value, str) else ""
        if os.path.isfile(path):
            found[key] = file_fingerprint(Path(path))
        elif path and os.path.isfile(os.path.join(path, "config.json")):
            found[key] = fingerprint(Path(path))
    return found


def check_continuable(before: Settings, now: Settings) -> None:
    """Refuse settings that no optimizer state of the checkpoint continues with.

    Raises:
        UserError: names the setting, and what to do.
    """
    for key, (old, new) in differing(before, now).items():
        kept = f"{key}={shown(old)}"
        if key == "model.optimizer":
            raise UserError(
                f"Expected the optimizer of the checkpoint, {old}, because another optimizer cannot continue from its "
                f"state, but got {new}, try {kept}, or --ckpt_path=null for a new run."
            )
        # A removed schedule leaves the configured learning rate, and is told.
        if key.startswith("model.lr_scheduler") and now.get("model.lr_scheduler") is not None:
            raise UserError(
                "Expected the schedule of the checkpoint, because a schedule continues with its first settings, "
                f"but got {key} {shown(old)} -> {shown(new)}, try {kept}, or --ckpt_path=null for a new run."
            )
    # Fixed weights have no state, from which new multipliers may begin.
    if _adapts(before) and not _adapts(now):
        raise UserError(
            f"Expected the multipliers of the checkpoint's run, by {ADAPTING}, but got another callback or none, try "
            "the callbacks of its config.yaml, or --ckpt_path=null for a new run."
        )


def _adapts(settings: Settings) -> bool:
    callbacks = [str(value) for key, value in settings.items() if key.startswith("callbacks.")]
    return any(value.rpartition(".")[2] == ADAPTING for value in callbacks)


def _sources(trainer: Trainer, splits: Sequence[str]) -> Iterator[tuple[str, PromptSource]]:
    """The prompts of each split, without reading prompts that are not in memory."""
    data = getattr(trainer, "datamodule", None)
    if isinstance(data, GroupDataModule):
        for split in splits:
            try:
                yield split, data.source(cast(Split, split))
            except UserError:
                continue  # no validation prompts
        return
    loop = trainer.fit_loop
    for split, given in (("train", loop._data_source), ("val", loop.epoch_loop.val_loop._data_source)):
        loader = given.instance
        if isinstance(loader, PromptLoader) and split in splits:
            yield split, loader.source
