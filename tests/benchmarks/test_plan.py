"""The plan against the recorded measurements: whatever changes in the formulas, they still agree."""

import json

import pytest

from benchmarks.plan import RESULTS, compare
from benchmarks.plan_models import CONFIGURATIONS, configuration, model_config, tokenizer_of
from lightning_cgrpo.planning.plan import plan

RECORDED = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
TOLERANCE = 0.15


def test_three_configurations_were_held_out():
    held_out = [name for name in RECORDED if not CONFIGURATIONS[name]["used"]]
    assert len(held_out) >= 3
    for name in held_out:
        assert RECORDED[name]["megabytes"]["peak"]["ratio"] == pytest.approx(1, abs=TOLERANCE)


@pytest.mark.parametrize("name", [name for name in RECORDED if "images" not in CONFIGURATIONS[name]])
def test_predictions_are_still_within_15_percent_of_what_was_measured(name, tmp_path):
    of = CONFIGURATIONS[name]
    model_config(of["model"], tokenizer_of(of["model"])).save_pretrained(tmp_path)
    predicted = plan(configuration(tmp_path, of), prompt_tokens=of["prompt_tokens"])
    assert predicted.parameters == RECORDED[name]["parameters"]
    recorded = RECORDED[name]["megabytes"]
    measured = {phase: round(1e6 * row["measured"]) for phase, row in recorded.items() if phase != "peak"}
    for phase, (said, found) in compare(measured, predicted.memory.phases).items():
        assert said == pytest.approx(found, rel=TOLERANCE), phase
