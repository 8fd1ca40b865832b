"""Each file of examples/constraints trains, and logs what its comment promises."""

import csv
import shlex
from pathlib import Path

import pytest

from lightning_cgrpo.__main__ import main
from tests.quiet import CSV, QUIET

FOLDER = Path(__file__).parents[1] / "examples/constraints"
SMALL = shlex.split(
    "--trainer.max_steps=2 --trainer.limit_val_batches=1 --trainer.val_check_interval=2 --callbacks.samples=null "
    "--callbacks.initial_rates=null --data.prompts_per_update=4 --data.eval_prompts=8 --model.group_size=4 "
    f"--model.sampler.max_new_tokens=30 {QUIET} {' '.join(CSV)} --trainer.logger.name=example"
)
EXPECTED = {
    "mean": {"mean/brevity", "multiplier/brevity", "rate/correctness", "val/mean/brevity"},
    "schedule": {"threshold/correctness", "threshold/format"},
    "drift": {"mean/drift", "multiplier/drift", "policy/kl"},
    "given": {"rate/long", "multiplier/long", "val/rate/long"},
    "subsets": {"rate/correctness", "threshold/correctness", "multiplier/correctness/steps=1", "val/rate/correctness"},
}
FURTHER = {"schedule": [f"--model.objective.constraints.{name}.over=2" for name in ("format", "correctness")]}


def test_all_examples_are_tried() -> None:
    studies = {"study", "far_study", "given_study", "length_study"}
    assert {file.stem for file in FOLDER.glob("*.yaml")} == EXPECTED.keys() | studies


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "mean" else pytest.mark.slow) for name in EXPECTED]
)
def test_trains(name: str, folder: Path) -> None:
    main(["fit", "-c", str(FOLDER / f"{name}.yaml"), *SMALL, *FURTHER.get(name, [])])
    [file] = folder.glob("runs/example/**/metrics.csv")
    rows = list(csv.DictReader(file.open()))
    logged = {tag for row in rows for tag, value in row.items() if value}
    assert logged >= EXPECTED[name]
    if name == "subsets":
        assert "multiplier/correctness" not in logged
    if name == "schedule":
        shown = [float(row["threshold/format"]) for row in rows if row.get("threshold/format")]
        assert shown == pytest.approx([0.95, 0.97])
