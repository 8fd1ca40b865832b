"""The parts of the GPU check."""

from __future__ import annotations

import csv
import tempfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.attention import flash_errors
from benchmarks.gpu.decoding import choice, decoding
from benchmarks.gpu.device import Attempts, Place
from benchmarks.gpu.families import family_waits
from benchmarks.gpu.machine import machine
from benchmarks.gpu.processes import processes
from benchmarks.gpu.training import head, passes, update
from benchmarks.gpu.waits import Waits
from lightning_cgrpo import CausalLMPolicy, VisionLanguagePolicy
from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.cli.command_line import CommandLine
from lightning_cgrpo.cli.preparation import prepare

QUIET = ("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false", "--callbacks.progress=null")
BARE = ("--trainer.limit_val_batches=0", "--trainer.enable_checkpointing=false", "--callbacks.initial_rates=null")
SMALL = {
    "gridworld": ("--data.prompts_per_update=2",),
    "gsm8k": ("--data.prompts_per_update=2", "--model.group_size=4"),
    "navsim": ("--data.prompts_per_update=2", "--model.group_size=4"),
}
"""Sizes of short updates."""
RATES, MULTIPLIERS = 0.02, 0.001
"""Largest passing differences between GPU and CPU in the first update; an answer in 128 changes a rate by 0.008."""

FLASH_ERROR = 0.02
"""Largest passing error of the flash kernel, relative to the largest value; bfloat16 rounds by 0.004."""


def fit(task: str, *options: str) -> CommandLine:
    with tempfile.TemporaryDirectory() as folder:
        nowhere = f"--trainer.default_root_dir={folder}"  # a run without a logger writes its configuration there
        config, flags = read_arguments("fit", ["-c", f"configs/{task}.yaml", *QUIET, *BARE, nowhere, *options])
        prepare("fit", config)
        return CommandLine("fit", config, flags)


def prompts(where: Place) -> dict[str, Any]:
    """Check if shipped models share prompts, and the flash kernel; list the attention kernels of a GSM8K update."""
    shared = {}
    for policy in (CausalLMPolicy("packaged:word-problems"), VisionLanguagePolicy("packaged:driver")):
        with where.device:
            policy.load()
        shared[policy.name] = policy.shares_prompts
    with torch.profiler.profile() as profile:
        fit("gsm8k", "--trainer.max_steps=1", "--trainer.logger=false", *where.options, *SMALL["gsm8k"])
    kernels = Counter({event.key: event.count for event in profile.key_averages() if "attention" in event.key.lower()})
    flash = flash_errors(where.device)
    right = all(error <= FLASH_ERROR for name, error in flash.items() if name not in ("skipped", "milliseconds"))
    passed = right and all(shared.values())
    return {"passed": passed, "shares_prompts": shared, "attention": dict(kernels.most_common(6)), "flash": flash}


def waits(where: Place) -> dict[str, Any]:
    """Waits of the host for the device in an update of each shipped task, with the lines that wait most.

    Small vision-language models of the other families follow, in a training pass.
    """
    by_task = {}
    Waits.pretended = where.waits
    for task, small in SMALL.items():
        counting = "--callbacks.waits=benchmarks.gpu.waits.Waits"
        sizes = small if where.tiny else ()
        fit(task, "--trainer.max_steps=2", "--trainer.logger=false", counting, *where.options, *sizes)
        by_task[task] = {"waits": Waits.lines.total(), "most": dict(Waits.lines.most_common(8))}
    return {"tasks": by_task, "families": family_waits(where)}


def metrics(task: str, *options: str) -> dict[str, float]:
    """Rates and multipliers after the first update."""
    with tempfile.TemporaryDirectory() as folder:
        logger = ("--trainer.logger=CSVLogger", f"--trainer.logger.save_dir={folder}", "--trainer.log_every_n_steps=1")
        fit(task, *logger, "--trainer.max_steps=1", *options)
        (file,) = Path(folder).rglob("metrics.csv")
        with file.open(encoding="utf-8") as lines:
            row = next(csv.DictReader(lines))
    return {tag: float(value) for tag, value in row.items() if tag.startswith(("rate/", "multiplier/")) and value}


def first(where: Place) -> dict[str, Any]:
    """Differences of rates and multipliers between device and CPU after the first update, without TF32.

    Both sides begin with equal weights. A token that rounding flips would send later updates apart.
    """
    by_task: dict[str, Any] = {}
    passed = True
    for task, small in SMALL.items():
        there = metrics(task, *where.options, "--trainer.precision=32-true", *small)  # as the CPU
        here = metrics(task, *small)
        apart = {
            kind: max((abs(there[tag] - here[tag]) for tag in here if tag.startswith(kind)), default=0.0)
            for kind in ("rate", "multiplier")
        }
        passed &= apart["rate"] <= RATES and apart["multiplier"] <= MULTIPLIERS
        by_task[task] = {"largest difference": apart, "values": len(here)}
    return {"passed": passed, **by_task}


def trl(where: Place) -> dict[str, Any]:
    """A setting of `benchmarks.trl` beside TRL, if installed, and TRL with vLLM, if installed; products in TF32."""
    if find_spec("trl") is None:
        return {"skipped": "TRL is not installed"}
    if where.pretended:
        return {"skipped": "TRL does not run on a pretended device"}
    from benchmarks.trl.__main__ import measure
    from benchmarks.trl.settings import SETTINGS

    attempt = Attempts()
    sides = ["ours", "trl", *(["trl, vLLM"] if find_spec("vllm") is not None else [])]
    for side in sides:
        attempt(side, lambda s=side: measure(s, 1, 3))  # type: ignore[misc]
    result = attempt.result()
    if result["passed"]:
        for side in sides[1:]:
            keys = "update", "rollout", "memory"
            result[f"{side} / ours"] = {key: round(result[side][key] / result["ours"][key], 2) for key in keys}
    return {"setting": SETTINGS[1].name, **result}


PARTS = {
    "machine": machine,
    "decoding": decoding,
    "choice": choice,
    "passes": passes,
    "head": head,
    "update": update,
    "first": first,
    "trl": trl,
    "processes": processes,
    "prompts": prompts,
    "waits": waits,
}
