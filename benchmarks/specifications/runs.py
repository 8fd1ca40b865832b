"""The answers of a run's policy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from benchmarks.first_looks import command
from benchmarks.specifications.job import Job, Run


def train(job: Job, run: Run, folder: Path, overrides: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """Train, and answer each test prompt once.

    Args:
        folder: of the run; what is there is removed.
        overrides: further arguments of ``fit``.

    Returns:
        The job's signals of the answers ``[N]``, and whether a prompt is new among those before it ``[N]``; the CPU
        seconds of training, and the chance of a certificate that its card tells (NaN without a declared look).

    Raises:
        RuntimeError: a command failed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if job.beside:
        shutil.copytree(job.config.parent, folder, ignore=shutil.ignore_patterns("runs", "data", "__pycache__"))
    else:
        folder.mkdir(parents=True)
    if job.prepare:
        job.prepare(folder)
    configs, settings = job.settings(job, run)
    (folder / "run.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    arguments = []
    for path in (job.config, *configs, folder / "run.yaml"):
        arguments += ["-c", str(path)]
    _must_end("fit", *arguments, f"--seed_everything={run.seed}", "--callbacks.samples=null", *overrides, folder=folder)
    (trained,) = folder.glob("runs/*/version_0")
    _must_end(
        "predict", "-c", str(trained / "config.yaml"), f"--ckpt_path={run.checkpoint}", *job.predict, folder=folder
    )  # fmt: skip
    return answers_of(job, trained)


def answers_of(job: Job, trained: Path) -> dict[str, NDArray[Any]]:
    """The answers as `train` returns them, of a run whose version is the folder `trained`."""
    file = trained / "predictions.jsonl"
    answers = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    answers.sort(key=lambda answer: answer["index"])
    if len(answers) != job.selecting + job.looked:
        raise RuntimeError(f"{len(answers)} answers, not {job.selecting + job.looked}")
    signals = {}
    for name, kept in job.signals.items():
        signals[name] = np.array([answer["signals"][name] for answer in answers], kept)
    new = np.zeros(len(answers), bool)
    new[np.unique([answer["prompt"] for answer in answers], return_index=True)[1]] = True
    summary = json.loads((trained / "summary.json").read_text(encoding="utf-8"))
    best = summary["measured"].get("best", {})  # none without validation
    chance = (best.get("chance") or {}).get("whole", np.nan)
    return signals | {"new": new, "cpu_seconds": np.array(summary["cpu_seconds"]), "chance": np.array(chance)}


def _must_end(*arguments: str, folder: Path) -> None:
    if command(*arguments, folder=folder):
        raise RuntimeError(f"{arguments[0]} failed, see {folder / 'output.txt'}")
