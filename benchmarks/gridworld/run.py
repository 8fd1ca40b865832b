"""The paper's gridworld, all of it.

    python -m benchmarks.gridworld.run                        # sets paper and sweep; goes on where it was stopped
    python -m benchmarks.gridworld.run controllers choices    # other sets
    python -m benchmarks.gridworld.run --list                 # what is finished

Every core trains up to five runs at a time, whose rollouts are one batched computation. A run that is finished is saved
with its set's report, docs/results/gridworld/<set>, and not trained again: to reproduce the results rather than add to
them, give another folder, --results.
"""

from __future__ import annotations

from benchmarks.gridworld.experiments import ADVANTAGES, SETS, STANDARD, paper
from benchmarks.runner.experiment import Experiment, Run
from benchmarks.runner.run import main


def reference() -> list[Run]:
    """The paper's runs with both thresholds at 0.01, of three seeds."""
    return [run for run in paper() if "lava_0.01_battery_0.01" in run.name and run.seed < 3]


GRIDWORLD = Experiment(
    name="gridworld",
    help=__doc__,
    sets=SETS,
    standard=STANDARD,
    lanes=5,
    compared={
        "controllers": lambda: [run for run in reference() if run.name.startswith(ADVANTAGES)],
        "choices": reference,
    },
)

if __name__ == "__main__":
    main(GRIDWORLD)
