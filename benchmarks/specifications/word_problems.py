"""Twelve specifications of word problems."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.first_looks import ROOT
from benchmarks.specifications.job import Job, Run, Settings, ablation

SOFTMAX_ADAM = {"class_path": "lightning_cgrpo.multipliers.SoftmaxAdam", "init_args": {"lr": 0.02, "init": 0.02}}
"""The paper's dual, as in softmax_adam.yaml."""


def settings(job: Job, run: Run) -> Settings:
    data = {"init_args": {"val_prompts": 1_000}}
    if run.method == "declared":
        return [], {"model": _objective(job, run.name, {"prompts": job.looked}), "data": data}
    if run.method == "paper_dual":
        specified = {"model": _objective(job, run.name, None), "data": data}
        group_scale = ablation("gsm8k/group_scale")
        if "correctness" in job.specifications[run.name]["constraints"]:
            return [group_scale, ablation("gsm8k/softmax_adam")], specified
        # The floor that this dual needs here is on a constraint of correctness, and there is none.
        specified["callbacks"] = {"multipliers": {"init_args": {"controller": SOFTMAX_ADAM}}}
        return [group_scale], specified
    shared: dict[str, Any] = {"model": {"init_args": {"objective": {"look": None}}}, "data": data}
    if run.method == "gdpo":
        return [ablation("gsm8k/gdpo")], shared
    shared["callbacks"] = {"multipliers": {"init_args": {"weights": job.fixed_weights[int(run.name)]}}}
    return [ablation("gsm8k/fixed_weights")], shared


def _objective(job: Job, name: str, look: dict[str, Any] | None) -> dict[str, Any]:
    specified = job.specifications[name]
    # The constraints of configs/gsm8k.yaml that the specification does not have are taken away.
    constraints = {"correctness": None} | specified["constraints"]
    return {"init_args": {"objective": specified | {"constraints": constraints, "look": look}}}


WORD_PROBLEMS = Job(
    name="specifications",
    config=ROOT / "configs/gsm8k.yaml",
    results=ROOT / "docs/results/specifications",
    methods={
        "declared": "declared with a planned look",
        "before": "the same before the mend",
        "paper_dual": "the paper's dual",
        "gdpo": "GDPO",
        "pool": "the best of the fixed weights",
    },
    retired=("before",),  # the dual of until November 29, 2026 (commit 268fc82e)
    signals=dict.fromkeys(("tokens", "correctness", "format", "integer"), np.uint8),
    longest=80,
    selecting=1_000,
    looked=5_000,
    predict=("--data.test_prompts=6_000",),
    tested=1_000,
    pool=32,
    weights={"correctness": (0.5, 16.0), "format": (0.5, 4.0), "integer": (0.5, 4.0)},
    settings=settings,
    reward_words="right",
)
