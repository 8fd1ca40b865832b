"""A run's record, as files hold it and as tables show it."""

import json
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from types import SimpleNamespace

import pytest
import torch

from lightning_cgrpo.callbacks.progress import measured_constraints, objective_status, progress_table
from lightning_cgrpo.callbacks.run_clock import machine
from lightning_cgrpo.callbacks.update_lines import update_line
from lightning_cgrpo.cli.report.results import final_table
from lightning_cgrpo.objective.bound import Bound
from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.objective.look import Chance, Look
from lightning_cgrpo.objective.measured_constraint import MeasuredConstraint
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.run.record import Inputs, Measurement, Reward, RunRecord
from tests.cli.report.conftest import made, method

COMMITTED = sorted(Path(__file__).parents[2].glob("docs/results/**/runs/*.json"))
LATER = {"held", "inputs", "validations"}
"""Keys that the oldest committed runs lack."""
GONE = {"collapsed", "distributions", "final", "tests", "width", "steps", "series"}
"""Keys of old versions, and of `Saved`."""
OBJECTIVE = Objective("goal", {"long": Constraint(at_most=0.05, given="correct")})
LATEST = {"rate/long": 0.0712, "reward/mean": 0.5, "multiplier/long": 0.4}


@pytest.mark.parametrize("file", COMMITTED[::25], ids=lambda file: f"{file.parents[1].name}-{file.stem}")
def test_a_committed_record_is_read_and_written_as_it_was(file):
    content = json.loads(file.read_text())
    written = json.loads(json.dumps(RunRecord.read(content).as_json()))
    assert content.keys() - written.keys() <= GONE and written.keys() - content.keys() <= LATER
    for key in content.keys() & written.keys() - {"measured", "machine"}:
        assert written[key] == content[key], key
    assert content["machine"].items() <= written["machine"].items()
    for stage, measured in content["measured"].items():
        for name, of in measured["constraints"].items():
            assert of.items() <= written["measured"][stage]["constraints"][name].items()
        assert measured["reward"].items() >= written["measured"][stage]["reward"].items()


def test_a_record_survives_its_file():
    bound = Bound("rate", "at_most", 0.05)
    long = MeasuredConstraint("long", bound, given="correct", role="monitor")
    last = Measurement(5, Reward(0.5, 0.1), {"long": long.at(0.2, (0.1, 0.3), "missed")}, prompts=8, answers=64)
    record = RunRecord("mine", constraints={"long": long}, measured={"last": last}, validations=[last], held={})
    record.inputs = Inputs({"my.rewards": "1f"}, {"train": "2e"}, {"rules": "3d"})
    assert RunRecord.read(json.loads(json.dumps(record.as_json()))) == record
    chance = Chance(0.4, {"long": 0.4}, {2_000: 0.7, 5_000: 0.9})
    looked = replace(last, targets={"long": 0.03}, chance=chance)
    record = replace(record, look=Look(1_000), measured={"last": looked}, validations=[looked])
    assert RunRecord.read(json.loads(json.dumps(record.as_json()))) == record
    other = replace(long, name="brief")
    assert Measurement.read(last.as_json(), {"brief": other}).constraints == {}, "of an earlier part of the run"


def test_a_condition_is_shown_wherever_a_constraint_is():
    module = SimpleNamespace(objective=OBJECTIVE, latest_metrics=LATEST, latest_rates={})
    assert "<= 0.05 given correct" in [str(cell) for cell in progress_table(module).columns[1].cells]
    assert update_line(OBJECTIVE, LATEST) == "reward 0.5, long 0.071 > 0.05 given correct λ 0.4"
    assert objective_status(OBJECTIVE, LATEST)[1] == "worst long 0.071 > 0.05 given correct"
    assert [of.label for of in measured_constraints(OBJECTIVE, LATEST)] == ["long <= 0.05 given correct"]


def test_a_report_shows_a_condition_in_the_title_or_in_the_cells_that_differ():
    def of(label, **given):
        declared = {"kind": "rate", "direction": "at_most", "threshold": 0.05, "role": "constrain", **given}
        return method(label, made({"rate/long": [0.1] * 10}, {"rate/long": 0.1}, constraints={"long": declared}))

    conditional = of("a", given="correct")
    assert final_table([conditional]).heads[-1] == "rate long ≤ 0.05 given correct"
    table = final_table([conditional, of("b")])
    assert table.heads[-1] == "rate long ≤ 0.05"
    assert [row[-1] for row in table.rows] == ["0.1000 (given correct) !", "0.1000 !"]


def test_a_run_tells_its_machine():
    found = machine(torch.device("cpu"))
    assert (found.python, found.torch, found.lightning) == (python_version(), version("torch"), version("lightning"))
    assert found.cpu and found.cores and found.gpu is None
