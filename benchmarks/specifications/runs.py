"""The runs of each method, and the answers of their policies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.stats import qmc

from benchmarks.first_looks import ROOT, command

ABLATIONS = ROOT / "configs/ablations/gsm8k"
SELECTING, LOOKED = 1_000, 5_000
"""Test problems by which a policy is chosen, and those of the look at it."""
POOL = 32
WEIGHTS = {"correctness": (0.5, 16.0), "format": (0.5, 4.0), "integer": (0.5, 4.0)}
"""The pool's ranges of weights, beside a weight of 1 on brevity."""
METHODS = ("declared", "before", "paper_dual", "gdpo", "pool")
"""`before` is `declared` with the dual of until November 29, 2026 (commit 268fc82e): it cannot be trained today."""
SOFTMAX_ADAM = {"class_path": "lightning_cgrpo.multipliers.SoftmaxAdam", "init_args": {"lr": 0.02, "init": 0.02}}
"""The paper's dual, as in softmax_adam.yaml."""
SIGNALS = ("tokens", "correctness", "format", "integer")


@cache
def specifications() -> dict[str, dict[str, Any]]:
    """Rewards and constraints by name."""
    text = (Path(__file__).parent / "specifications.yaml").read_text(encoding="utf-8")
    specified: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return specified


@dataclass(frozen=True)
class Run:
    """A training run.

    Args:
        method: of `METHODS`.
        name: the specification, or the number of fixed weights, or "" for GDPO, which trains for no specification.
    """

    method: str
    name: str
    seed: int

    def __str__(self) -> str:
        parts = (self.method, self.name, f"seed={self.seed}")
        return ",".join(part for part in parts if part)

    @property
    def checkpoint(self) -> str:
        """The run's best where it trains for a specification, else its last."""
        return "best" if self.method in ("declared", "paper_dual") else "last"

    def settings(self) -> tuple[list[Path], dict[str, Any]]:
        """Configurations over ``configs/gsm8k.yaml``, and settings over those."""
        data = {"init_args": {"val_prompts": 1_000}}
        if self.method == "declared":
            return [], {"model": _objective(self.name, {"prompts": LOOKED}), "data": data}
        if self.method == "paper_dual":
            settings = {"model": _objective(self.name, None), "data": data}
            if "correctness" in specifications()[self.name]["constraints"]:
                return [ABLATIONS / "group_scale.yaml", ABLATIONS / "softmax_adam.yaml"], settings
            # The floor that this dual needs here is on a constraint of correctness, and there is none.
            settings["callbacks"] = {"multipliers": {"init_args": {"controller": SOFTMAX_ADAM}}}
            return [ABLATIONS / "group_scale.yaml"], settings
        settings = {"model": {"init_args": {"objective": {"look": None}}}, "data": data}
        if self.method == "gdpo":
            return [ABLATIONS / "gdpo.yaml"], settings
        settings["callbacks"] = {"multipliers": {"init_args": {"weights": pool()[int(self.name)]}}}
        return [ABLATIONS / "fixed_weights.yaml"], settings


def runs_of(method: str, seeds: int) -> Iterator[Run]:
    """All runs of a method; the pool has one seed."""
    for seed in range(min(seeds, 1) if method == "pool" else seeds):
        for name in _names_of(method):
            yield Run(method, name, seed)


def _names_of(method: str) -> list[str]:
    """See `Run`."""
    if method == "gdpo":
        return [""]
    if method == "pool":
        return [str(number) for number in range(POOL)]
    return [*specifications()]


def pool() -> list[dict[str, float]]:
    """Fixed weights: the first points of Sobol's sequence between `WEIGHTS`, on a logarithmic scale, which sum to 1."""
    low, high = np.log(list(WEIGHTS.values())).T
    points = np.exp(qmc.scale(qmc.Sobol(len(WEIGHTS), seed=0).random(POOL), low, high))
    found = []
    for point in points:
        total = 1 + float(point.sum())
        weights = {"reward": 1.0} | dict(zip(WEIGHTS, point.tolist(), strict=True))
        found.append({name: round(weight / total, 4) for name, weight in weights.items()})
    return found


def _objective(name: str, look: dict[str, Any] | None) -> dict[str, Any]:
    specified = specifications()[name]
    # The constraints of configs/gsm8k.yaml that the specification does not have are taken away.
    constraints = {"correctness": None} | specified["constraints"]
    return {"init_args": {"objective": specified | {"constraints": constraints, "look": look}}}


def train(run: Run, folder: Path) -> dict[str, NDArray[Any]]:
    """Train, and answer each test problem once.

    Args:
        folder: of the run; what is there is removed.

    Returns:
        `SIGNALS` of the answers ``[N]``, and whether a problem is new among those before it ``[N]``; the CPU seconds of
        training, and the chance of a certificate that its card tells (NaN without a declared look).

    Raises:
        RuntimeError: a command failed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    configs, settings = run.settings()
    (folder / "run.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    arguments = []
    for path in (ROOT / "configs/gsm8k.yaml", *configs, folder / "run.yaml"):
        arguments += ["-c", str(path)]
    _must_end("fit", *arguments, f"--seed_everything={run.seed}", "--callbacks.samples=null", folder=folder)
    (trained,) = folder.glob("runs/*/version_0")
    _must_end(
        "predict", "-c", str(trained / "config.yaml"), f"--ckpt_path={run.checkpoint}",
        f"--data.test_prompts={SELECTING + LOOKED}", folder=folder,
    )  # fmt: skip
    (file,) = folder.glob("runs/*/version_0/predictions.jsonl")
    answers = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    answers.sort(key=lambda answer: answer["index"])
    signals = {name: np.array([answer["signals"][name] for answer in answers], np.uint8) for name in SIGNALS}
    new = np.zeros(len(answers), bool)
    new[np.unique([answer["prompt"] for answer in answers], return_index=True)[1]] = True
    summary = json.loads((trained / "summary.json").read_text(encoding="utf-8"))
    chance = (summary["measured"]["best"].get("chance") or {}).get("whole", np.nan)
    return signals | {"new": new, "cpu_seconds": np.array(summary["cpu_seconds"]), "chance": np.array(chance)}


def _must_end(*arguments: str, folder: Path) -> None:
    if command(*arguments, folder=folder):
        raise RuntimeError(f"{arguments[0]} failed, see {folder / 'output.txt'}")
