"""Five specifications of notes about customers' messages, with a released model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.first_looks import ROOT
from benchmarks.specifications.job import Job, Run, Settings
from examples.support_notes import support_notes


def settings(job: Job, run: Run) -> Settings:
    if run.method == "declared":
        specified = job.specifications[run.name]
        # The constraints of support_notes.yaml that the specification does not have are taken away.
        constraints = {"long": None} | specified["constraints"]
        look = {"prompts": job.looked}
        objective = specified | {"constraints": constraints, "look": look}
        return [], {"model": {"init_args": {"objective": objective}}}
    weights = {
        "class_path": "lightning_cgrpo.callbacks.FixedWeights",
        "init_args": {"weights": job.fixed_weights[int(run.name)]},
    }
    return [], {
        "trainer": {"limit_val_batches": 0},  # the last checkpoint is judged
        "model": {"init_args": {"objective": {"look": None}}},
        "callbacks": {"multipliers": weights},
    }


def prepare(folder: Path) -> None:
    support_notes.main(folder / "data")


SUPPORT_NOTES = Job(
    name="support_notes",
    config=ROOT / "examples/support_notes/support_notes.yaml",
    results=ROOT / "docs/results/support_notes",
    methods={"declared": "declared with a planned look", "pool": "the best of the fixed weights"},
    signals={"tokens": np.uint8, "coverage": np.float32, "leak": np.uint8, "grounded": np.uint8},
    longest=64,
    selecting=500,
    looked=1_500,
    pool=8,
    weights={"leak": (0.25, 4.0), "grounded": (0.25, 4.0), "long": (0.25, 4.0)},
    settings=settings,
    reward_words="of the facts",
    beside=True,
    prepare=prepare,
)
