"""The callback that keeps a run's manifest in its checkpoints, and tells what a resume changes."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only

from lightning_cgrpo import __version__
from lightning_cgrpo.callbacks.log_writers import run_folder
from lightning_cgrpo.core.distributed import by_first
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.output import write_whole
from lightning_cgrpo.core.prompts.source import PromptLoader, PromptSource
from lightning_cgrpo.datamodules.base import GroupDataModule
from lightning_cgrpo.policies.model_files import fingerprint
from lightning_cgrpo.policies.rendering import chat_fingerprint
from lightning_cgrpo.policies.text_policy import TextPolicy
from lightning_cgrpo.run.fingerprints import (
    file_fingerprint,
    file_fingerprints,
    source_fingerprints,
)
from lightning_cgrpo.run.lineage import Ancestry, read_lineage
from lightning_cgrpo.run.manifest import KEY, Manifest, differences, shown
from lightning_cgrpo.run.reads import reads_in
from lightning_cgrpo.run.register import Register, project_of
from lightning_cgrpo.settings.objects import described, described_optimizer
from lightning_cgrpo.settings.settings import MADE, Settings, differing, settings_of

FILE = "manifest.json"
EVALUATED = ("model.policy", "model.sampler", "model.task", "model.objective")
"""Beginnings of the keys that an evaluation depends on."""
UNEVALUATED = ("data.", "model.estimator.", "model.optim")
"""Beginnings of the keys of files that only training reads."""
START = "model.policy.model"
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

TRAINER = (
    "max_steps",
    "max_epochs",
    "accumulate_grad_batches",
    "gradient_clip_val",
    "gradient_clip_algorithm",
    "limit_train_batches",
    "limit_val_batches",
    "val_check_interval",
    "check_val_every_n_epoch",
    "overfit_batches",
    "precision",
)
"""Arguments of Lightning's trainer that it keeps, and that change numbers."""

rank_zero_print = rank_zero_only(print)


class RunManifest(Callback):
    """Keeps the `Manifest` in every checkpoint, and beside them as ``manifest.json``.

    A resume prints every difference to the checkpoint's manifest in a line, and refuses those that training cannot
    continue from: another optimizer, another schedule of the learning rate, another callback of the multipliers.

    Args:
        settings: of the configuration, from `settings_of`; None for a run from Python, whose settings are the
            arguments that its objects were made with.
    """

    changes_learning = False

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings
        self._declared = settings
        self.manifest: Manifest | None = None

        self.told: list[str] = []
        """Differences of the evaluated policy to its training."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        # Each fit and each evaluation has settings of its own; a manifest stays after a fit, for later checkpoints.
        self.settings = self._declared
        self.told = []
        if stage == "fit":
            self.manifest = None

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        before = Manifest.of(checkpoint)
        self._read_settings(trainer, pl_module)
        if trainer.state.fn != "fit":
            self._tell_evaluation(trainer, pl_module, before)
            return
        self.manifest = self._make_manifest(trainer, pl_module)
        if before is None:
            rank_zero_print("The checkpoint has no manifest, so what differs from its run is not known.")
            return
        if before.settings is not None and self.settings is not None:
            check_continuable(before.settings, self.settings)
        self.manifest = self.manifest.continuing(before)
        for line in differences(before, self.manifest):
            rank_zero_print(f"from update {checkpoint['global_step']:,}: {line}")

    def _read_settings(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.settings is None:
            self.settings = _settings_of_objects(trainer, pl_module)

    def _tell_evaluation(self, trainer: Trainer, pl_module: LightningModule, before: Manifest | None) -> None:
        """Print what differs of the evaluated policy from what trained it."""
        if before is None or not trainer.is_global_zero:
            return
        settings = self.settings or {}
        reads = reads_in(settings)
        now = Manifest(
            self.settings,
            code=reads.code,
            start=_start_fingerprints(pl_module),
            rendered=_chat_fingerprints(pl_module),
            files=named_files(_evaluation_settings(settings)) | reads.files | reads.found,
            variables=reads.variables,
            machine={"precision": str(trainer.precision)},
        )
        self.told = differences(_of_policy(before), _of_policy(now))
        for line in self.told:
            print(f"not as in training: {line}")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = run_folder(trainer)
        self._read_settings(trainer, pl_module)
        ancestry = Ancestry()
        if self.manifest is None:
            ancestry = _read_ancestry(pl_module)
            manifest = self._make_manifest(trainer, pl_module)
            self.manifest = manifest.starting(ancestry.lineage, ancestry.used, ancestry.known)
        if not Path(self.manifest.project or "nowhere").is_dir():  # a new run, or a run from another machine
            runs = folder.parent.parent if trainer.loggers else folder
            self.manifest = replace(self.manifest, project=str(project_of(runs)))
        if trainer.is_global_zero:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / FILE, json.dumps(self.manifest.readable(), indent=1) + "\n")
            _take_looks(ancestry, Path(self.manifest.project))

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self.manifest is not None:
            checkpoint[KEY] = self.manifest.state()

    def _make_manifest(self, trainer: Trainer, pl_module: LightningModule) -> Manifest:
        """The manifest of this run; fingerprints of prompts and files on the first process alone. Collective."""
        settings = self.settings or {}
        sizes = {}
        prompts = {}
        for split, source in _prompt_sources(trainer):
            sizes[split] = len(source)
            fingerprints = source_fingerprints(source) if trainer.is_global_zero else None
            if fingerprints is not None:
                prompts[split] = fingerprints
        reads = by_first(lambda: reads_in(settings))
        files: dict[str, str] = {}
        if trainer.is_global_zero:
            # Prompts tell more than their files. Callbacks name files that they write.
            sections = ("model.",) if prompts else ("model.", "data.")
            naming = {key: value for key, value in settings.items() if key.startswith(sections)}
            files = named_files(naming) | reads.files | reads.found
        return Manifest(
            settings=self.settings,
            sizes=sizes,
            prompts=prompts,
            code=reads.code,
            start=_start_fingerprints(pl_module),
            rendered=_chat_fingerprints(pl_module),
            files=files,
            variables=reads.variables,
            machine={
                "processes": str(trainer.world_size),
                "device": _device_name(pl_module.device),
                "precision": str(trainer.precision),
            },
            versions={"lightning_cgrpo": __version__, **reads.versions, **library_versions()},
        )


def _settings_of_objects(trainer: Trainer, module: LightningModule) -> Settings:
    """The settings of a run from Python, as far as possible by the keys of a configuration."""
    model = described(module)
    optimization = getattr(module, "manual_optimization", None)
    if optimization is not None:
        model["init_args"] |= described_optimizer(optimization.make_optimizer, optimization.make_scheduler)
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    config = {
        MADE: "in Python",
        "model": model,
        "callbacks": _described_callbacks(callbacks),
        "trainer": {name: getattr(trainer, name, None) for name in TRAINER},
    }
    data = getattr(trainer, "datamodule", None)
    if data is not None:
        config["data"] = described(data)
    return settings_of(config)


def _described_callbacks(callbacks: Iterable[Callback]) -> dict[str, Any]:
    """Described callbacks by their class's name; a second one of a class has a number."""
    by_name: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    for callback in callbacks:
        name = type(callback).__name__
        counts[name] += 1
        if counts[name] > 1:
            name = f"{name}_{counts[name]}"
        by_name[name] = described(callback)
    return by_name


def _read_ancestry(module: LightningModule) -> Ancestry:
    """The runs and the prompts that made the starting model of a new run."""
    origin = getattr(getattr(module, "policy", None), "origin", None)
    if origin is None:
        return Ancestry()
    ancestry = read_lineage(Path(origin.path), origin.fingerprint)
    if ancestry.fault:
        rank_zero_print(f"The prompts that trained the starting model are not known, because {ancestry.fault}.")
    return ancestry


def _take_looks(ancestry: Ancestry, project: Path) -> None:
    """Write the looks at the starting model's runs, which may be another project's, into this project's register."""
    if not ancestry.looks:
        return
    try:
        Register(project).take(ancestry.looks)
    except UserError as error:
        rank_zero_print(f"No certificate will know the looks at the starting model's runs. {error}")


def library_versions() -> dict[str, str]:
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
    settings = None if manifest.settings is None else _evaluation_settings(manifest.settings)
    machine = {name: value for name, value in manifest.machine.items() if name == "precision"}
    return Manifest(
        settings,
        code=manifest.code,
        start=manifest.start,
        rendered=manifest.rendered,
        files={key: value for key, value in manifest.files.items() if not key.startswith(UNEVALUATED)},
        variables=manifest.variables,
        machine=machine,
        lacks=manifest.lacks,
    )


def _evaluation_settings(settings: Settings) -> Settings:
    """The settings on which an evaluation depends."""
    return {key: value for key, value in settings.items() if key.startswith(EVALUATED)}


def _start_fingerprints(module: LightningModule) -> dict[str, str]:
    """Fingerprints of the weights and the small files of the model that the policy starts from."""
    origin = getattr(getattr(module, "policy", None), "origin", None)
    if origin is None:
        return {}
    return {"weights": origin.fingerprint} | file_fingerprints(Path(origin.path))


def _chat_fingerprints(module: LightningModule) -> dict[str, str]:
    """The fingerprint of a chat as the policy's template writes it, with the sampler's tools."""
    policy = getattr(module, "policy", None)
    if not isinstance(policy, TextPolicy) or policy.tokenizer is None:
        return {}
    options = dict(policy.chat_template_kwargs)
    tools = getattr(getattr(module, "sampler", None), "tools", ())
    if tools:
        options["tools"] = list(tools)
    fingerprint = chat_fingerprint(policy.tokenizer, options)
    return {} if fingerprint is None else {"a chat": fingerprint}


def named_files(settings: Settings) -> dict[str, str]:
    """Fingerprints of the files and models that settings name, by setting; the starting model's are elsewhere."""
    fingerprints = {}
    for key, value in settings.items():
        if key == START or not isinstance(value, str) or not value:
            continue
        # By os, because a path's own methods fail for a text too long for a name.
        path = os.path.expanduser(value)
        if os.path.isfile(path):
            fingerprints[key] = file_fingerprint(Path(path))
        elif os.path.isfile(os.path.join(path, "config.json")):
            fingerprints[key] = fingerprint(Path(path))
    return fingerprints


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
    if _learns_multipliers(before) and not _learns_multipliers(now):
        raise UserError(
            f"Expected the multipliers of the checkpoint's run, by {ADAPTING}, but got another callback or none, try "
            "the callbacks of its config.yaml, or --ckpt_path=null for a new run."
        )


def _learns_multipliers(settings: Settings) -> bool:
    callbacks = [str(value) for key, value in settings.items() if key.startswith("callbacks.")]
    return any(value.rpartition(".")[2] == ADAPTING for value in callbacks)


def _prompt_sources(trainer: Trainer) -> Iterator[tuple[str, PromptSource]]:
    """The prompts of training and validation by split, without reading prompts that are not in memory."""
    data = getattr(trainer, "datamodule", None)
    if isinstance(data, GroupDataModule):
        yield "train", data.source("train")
        with suppress(UserError):  # no validation prompts
            yield "val", data.source("val")
        return
    loop = trainer.fit_loop
    loaders = {"train": loop._data_source.instance, "val": loop.epoch_loop.val_loop._data_source.instance}
    for split, loader in loaders.items():
        if isinstance(loader, PromptLoader):
            yield split, loader.source
