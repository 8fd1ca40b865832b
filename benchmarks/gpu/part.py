"""One part of the GPU check; prints its result as a JSON line."""

from __future__ import annotations

import contextlib
import csv
import json
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.attention import flash_errors
from benchmarks.gpu.device import Place, place
from benchmarks.gpu.families import family_waits
from benchmarks.gpu.processes import processes
from benchmarks.gpu.throughput import throughput
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
"""Sizes on the pretended device."""
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


def versions(where: Place) -> dict[str, Any]:
    named: dict[str, Any] = {name: version(name) for name in ("torch", "lightning", "transformers")}
    named |= {"python": platform.python_version(), "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    if where.pretended:
        return {**named, "device": "pretended"}
    properties = torch.cuda.get_device_properties(where.device)
    return {**named, "device": properties.name, "gigabytes": round(properties.total_memory / 1e9, 1)}


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
        sizes = small if where.pretended else ()
        fit(task, "--trainer.max_steps=2", "--trainer.logger=false", counting, *where.options, *sizes)
        by_task[task] = {"waits": Waits.lines.total(), "most": dict(Waits.lines.most_common(8))}
    return {"tasks": by_task, "families": family_waits(where)}


def metrics(task: str, *options: str) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        logger = ("--trainer.logger=CSVLogger", f"--trainer.logger.save_dir={folder}", "--trainer.log_every_n_steps=1")
        fit(task, *logger, *options)
        (file,) = Path(folder).rglob("metrics.csv")
        with file.open(encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
    kept = ("rate/", "multiplier/")
    return [{tag: float(value) for tag, value in row.items() if tag.startswith(kept) and value} for row in rows]


def agreement(where: Place) -> dict[str, Any]:
    """Differences of rates and multipliers between device and CPU: after the first update, and at most later.

    The first update has equal weights on both sides. A token that rounding flips sends later updates apart, so these
    are shown, and decide nothing.
    """
    by_task: dict[str, Any] = {}
    passed = True
    for task, small in SMALL.items():
        sizes = (*small, "--trainer.max_steps=2") if where.pretended else ("--trainer.max_steps=20",)
        there = metrics(task, *where.options, "--trainer.precision=32-true", *sizes)  # as the CPU
        here = metrics(task, *sizes)
        first: dict[str, float] = {}
        largest: dict[str, float] = {}
        for device_row, cpu_row in zip(there, here, strict=True):
            for tag in device_row.keys() & cpu_row.keys():
                kind = tag.partition("/")[0]
                apart = abs(device_row[tag] - cpu_row[tag])
                first.setdefault(tag, apart)
                largest[kind] = max(largest.get(kind, 0.0), apart)
        in_first = {
            kind: max((value for tag, value in first.items() if tag.startswith(f"{kind}/")), default=0.0)
            for kind in ("rate", "multiplier")
        }
        passed &= in_first["rate"] <= RATES and in_first["multiplier"] <= MULTIPLIERS
        by_task[task] = {"rows": len(here), "first_update": in_first, "largest": largest}
    return {"passed": passed, "differences": by_task}


def trl(where: Place) -> dict[str, Any]:
    """One `benchmarks.trl` setting beside TRL, if installed."""
    try:
        version("trl")
    except ModuleNotFoundError:
        return {"skipped": "TRL is not installed"}
    if where.pretended:
        return {"skipped": "TRL does not run on a pretended device"}
    from benchmarks.trl.__main__ import measure
    from benchmarks.trl.settings import SETTINGS

    sides = {side: measure(side, 1, 3) for side in ("ours", "trl")}
    ratios = {key: round(sides["trl"][key] / sides["ours"][key], 2) for key in ("update", "rollout", "memory")}
    return {"setting": SETTINGS[1].name, **sides, "trl / ours": ratios}


PARTS = {
    "versions": versions,
    "prompts": prompts,
    "waits": waits,
    "agreement": agreement,
    "throughput": throughput,
    "processes": processes,
    "trl": trl,
}


@contextlib.contextmanager
def to_stderr() -> Iterator[None]:
    """Redirect a run's output, so stdout holds only the result."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def main() -> None:
    started = time.perf_counter()
    with to_stderr(), place() as where:
        result = PARTS[sys.argv[1]](where)
    print(json.dumps({**result, "seconds_of_part": round(time.perf_counter() - started, 1)}))


if __name__ == "__main__":
    main()
