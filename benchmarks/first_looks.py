"""How often the first look certifies what the packaged jobs declare, and the reward that the declared look costs.

    python -m benchmarks.first_looks your_problem   # a CPU minute for each of twenty runs; word_problems: three;
                                                    # gridworld: seven
    python -m benchmarks.first_looks --table        # the tables of docs/results/first_looks/README.md

Each seed trains twice: with the declared look, and with the settings before it, by the dual's margin for validations or
by aims of hand. `certify` then looks at each best checkpoint with the declared number of prompts.
Runs that docs/results/first_looks has are not repeated. Each run has a folder of its own, and thus its own register of
looks, because a second look at a lineage has less of the error.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.settings.configuration import get

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/results/first_looks"


@dataclass(frozen=True)
class Job:
    """A packaged job.

    Args:
        config: file below the root of the repository.
        no_look: arguments that take the declared look away.
        beside: whether the files beside the configuration belong to the job.
    """

    config: str
    no_look: tuple[str, ...]
    beside: bool = False

    def arguments(self, arm: str) -> list[str]:
        """Arguments of ``fit`` in another folder, where a copy of the configuration lies if `beside`."""
        config = Path(self.config).name if self.beside else str(ROOT / self.config)
        further = () if arm == "look" else self.no_look
        return ["-c", config, *(str(ROOT / word) if word.startswith("configs/") else word for word in further)]

    @property
    def prompts(self) -> int:
        """The declared look's."""
        config, _ = read_arguments("fit", ["-c", str(ROOT / self.config)])
        return int(get(config, "model.init_args.objective.look.prompts"))


JOBS = {
    "your_problem": Job(
        "examples/your_problem/your_problem.yaml", no_look=("--model.objective.look=null",), beside=True
    ),
    "word_problems": Job("configs/gsm8k.yaml", no_look=("-c", "configs/ablations/gsm8k/no_look.yaml")),
    "gridworld": Job("configs/gridworld.yaml", no_look=("-c", "configs/ablations/gridworld/no_look.yaml")),
    "driving": Job("configs/navsim.yaml", no_look=("-c", "configs/ablations/navsim/no_look.yaml")),
}
ARMS = ("look", "no_look")
MISSING = "not run"


def command(*arguments: str, folder: Path) -> int:
    """Exit status of a command of the package in `folder`, whose output goes to output.txt there."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    with (folder / "output.txt").open("a", encoding="utf-8") as output:
        return subprocess.run(
            [sys.executable, "-m", "lightning_cgrpo", *arguments],
            cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False,
        ).returncode  # fmt: skip


def run(name: str, arm: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train, and look once.

    Raises:
        RuntimeError: a command failed.
    """
    job = JOBS[name]
    shutil.rmtree(folder, ignore_errors=True)
    if job.beside:
        shutil.copytree((ROOT / job.config).parent, folder, ignore=shutil.ignore_patterns("runs", "__pycache__"))
    else:
        folder.mkdir(parents=True)
    (folder / "looks.jsonl").touch()  # a register above the folder would have other looks
    begun = time.monotonic()
    if command("fit", *job.arguments(arm), f"--seed_everything={seed}", folder=folder):
        raise RuntimeError(f"fit failed, see {folder / 'output.txt'}")
    wall = time.monotonic() - begun
    (trained,) = folder.glob("runs/*/version_0")
    record = json.loads((trained / "summary.json").read_text(encoding="utf-8"))
    asked = () if record.get("look") else ("--prompts", str(job.prompts))
    if command("certify", "-c", str(trained / "config.yaml"), *asked, folder=folder) not in (0, 3, 4):
        raise RuntimeError(f"certify failed, see {folder / 'output.txt'}")
    (look,) = _looks(folder / "looks.jsonl")
    best = record["measured"]["best"]
    return {
        "arm": arm,
        "seed": seed,
        "decision": look["decision"],
        "look": {key: of["rate"] for key, of in look["constraints"].items()},
        "decisions": {key: of["decision"] for key, of in look["constraints"].items()},
        "prompts": look["prompts"],
        "update": best["update"],
        "chance": best["chance"]["whole"] if arm == "look" else None,
        "targets": best.get("targets"),
        "validation": {key: of["value"] for key, of in best["constraints"].items()},
        "reward": best["reward"]["value"],
        "reward_at_end": record["measured"]["end"]["reward"]["value"],
        "cpu_seconds": round(record["cpu_seconds"]),
        "seconds": round(wall),
    }


def _looks(register: Path) -> list[dict[str, Any]]:
    entries = map(json.loads, register.read_text(encoding="utf-8").splitlines())
    return [entry for entry in entries if entry["event"] == "ended"]


def table(name: str, runs: list[dict[str, Any]]) -> str:
    """A row per seed, and the sums of both arms."""
    by_seed: dict[int, dict[str, dict[str, Any]]] = {}
    for of in runs:
        by_seed.setdefault(of["seed"], {})[of["arm"]] = of
    names = list(runs[0]["look"])
    rows = [["seed", "chance told", *names, "first look", "reward", "reward without a look", "its first look"]]
    rows.append(["---"] * len(rows[0]))
    for seed, arms in sorted(by_seed.items()):
        cells = [str(seed)]
        if (of := arms.get("look")) is None:
            cells += [MISSING] * (3 + len(names))
        else:
            cells += [f"{of['chance']:.2f}", *(f"{rate:.4f}" for rate in of["look"].values())]
            cells += [of["decision"], f"{of['reward']:.4f}"]
        of = arms.get("no_look")
        cells += [MISSING, MISSING] if of is None else [f"{of['reward']:.4f}", of["decision"]]
        rows.append(cells)
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    for arm in ARMS:
        of_arm = [of for of in runs if of["arm"] == arm]
        certified = sum(of["decision"] == "certified" for of in of_arm)
        lines.append(f"\n{name}, {arm}: {certified} of {len(of_arm)} first looks certify.")
    pairs = [arms for arms in by_seed.values() if len(arms) == 2]
    if len(pairs) > 1:
        difference = np.array([arms["look"]["reward"] - arms["no_look"]["reward"] for arms in pairs])
        half = student.ppf(0.975, len(pairs) - 1) * difference.std(ddof=1) / len(pairs) ** 0.5
        said = f"{difference.mean():+.4f} ± {half:.4f} (95 %, {len(pairs)} pairs of seeds)"
        lines.append(f"\nReward with the look less without: {said}.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", choices=[*JOBS, []], help="default: all")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--runs", type=Path, default=Path("runs/first_looks"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print the tables of the runs that are there")
    options = parser.parse_args()
    for name in options.jobs or JOBS:
        file = options.out / f"{name}.json"
        runs = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        for arm in () if options.table else options.arms:
            for seed in range(options.seeds):
                if any((of["arm"], of["seed"]) == (arm, seed) for of in runs):
                    continue
                runs.append(run(name, arm, seed, options.runs.resolve() / name / f"{arm},seed={seed}"))
                options.out.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
                print(json.dumps(runs[-1]), flush=True)
        if runs:
            print(table(name, runs))


if __name__ == "__main__":
    main()
