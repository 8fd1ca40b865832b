"""Every dialect beside totals of the devkit's own code, at each commit."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from driving_scenes.errors import InputError
from navsim_score.dialects import DIALECTS, EPDMS, PDMS, TWO_STAGES
from navsim_score.scorer import Scorer
from navsim_score.traffic.log_replay import LogReplay
from navsim_score.traffic.reactive import Reactive
from tests.navsim_score.devkit_scenes import candidates, scenes

OFFICIAL = json.loads((Path(__file__).parent / "devkit_rows.json").read_text())["scenes"]


@pytest.fixture(scope="module")
def scores():
    found, plans = list(scenes().values()), candidates()
    scene = torch.arange(len(found)).repeat_interleave(len(plans))
    return Scorer(found, pdms=True)(plans.repeat(len(found), 1, 1), scene)


@pytest.mark.parametrize("key", ["epdms", "epdms_before_fix", "epdms_no_filter"])
def test_epdms_is_the_devkits(scores, key):
    expected = torch.tensor([row for name in scenes() for row in OFFICIAL[name][key]], dtype=torch.float64)
    assert torch.allclose(DIALECTS[key](scores), expected[:, 0], rtol=0, atol=1e-9)
    for comfort in (0.0, 1.0):
        extended = scores.with_extended_comfort(torch.full_like(scores.progress, comfort))
        assert torch.allclose(DIALECTS[key](extended), expected[:, 1 + int(comfort)], rtol=0, atol=1e-9)
        assert torch.allclose(DIALECTS[f"{key}_no_ec"](extended), expected[:, 0], rtol=0, atol=1e-9)


def test_pdms_is_the_devkits(scores):
    rows = [row for name in scenes() for row in OFFICIAL[name]["pdms"]]
    for name, column in {**PDMS.shown(scores), "score": PDMS(scores)}.items():
        expected = torch.tensor([row[name] for row in rows], dtype=torch.float64)
        assert torch.allclose(column, expected, rtol=0, atol=1e-9), name


def test_the_cases_tell_the_dialects_apart(scores):
    totals = {key: tuple(dialect(scores).tolist()) for key, dialect in DIALECTS.items()}
    # Before the fix the filter changed the columns alone, so the totals are those without it.
    assert totals["epdms_before_fix"] == totals["epdms_no_filter"]
    assert len(set(totals.values())) == 3  # fixed, not filtered, PDMS
    stale = DIALECTS["epdms_before_fix"]
    shown = [of.shown(scores)["no_at_fault_collisions"] for of in (DIALECTS["epdms_no_filter"], stale)]
    lifted = shown[0] < shown[1]
    assert lifted.any() and (stale(scores)[lifted] == 0).all()  # all columns are 1 and the score is 0


def test_names_hold_traffic_and_stages():
    names = {dialect.full_name(traffic) for dialect in DIALECTS.values() for traffic in (LogReplay(), Reactive())}
    assert len(names) == 2 * (len(DIALECTS) - 1) + 1  # PDMS replays the log
    assert EPDMS.full_name(Reactive(), TWO_STAGES) == "EPDMS, two stages, Reactive"
    with pytest.raises(InputError, match="two stages"):
        PDMS.full_name(LogReplay(), TWO_STAGES)


def test_pdms_needs_its_own_columns(scores):
    with pytest.raises(InputError, match="pdms=True"):
        PDMS(replace(scores, pdms={}))
