"""The comparison with TRL: what it times and how, at sizes of no interest."""

import dataclasses
import importlib
import time
from pathlib import Path

import pytest
import torch

from benchmarks.trl.__main__ import HEADER, ratios, row
from benchmarks.trl.measure import Meter
from benchmarks.trl.settings import PROMPTS, SETTINGS, Setting, make_prompts, make_tokenizer, save_model

SMALL = Setting(12, 4, 2, 0.02, 2)


def test_texts_are_the_tokens_that_they_were():
    tokenizer = make_tokenizer()
    prompts = make_prompts(SMALL, updates=2)
    assert len(prompts) == 3 * PROMPTS
    lengths = []
    for prompt in prompts:
        tokens = tokenizer(prompt["prompt"]).input_ids
        assert tokenizer.decode(tokens) == prompt["prompt"]
        lengths.append(len(tokens))
    assert lengths == [8] * PROMPTS + [12] * 2 * PROMPTS, "the warm-up is short"


def test_meter_leaves_the_warm_up_out():
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of this worker's other tests
    meter = Meter()

    def work(seconds):
        started = time.process_time()
        while time.process_time() - started < seconds:
            pass

    rollout = meter.timed_rollout(work)
    for seconds in (0.3, 0.02, 0.02):
        rollout(seconds)
        work(0.04)
        meter.update_ended()
    block = torch.ones(8 << 20)  # 32 MB
    found = meter.results()
    assert found["updates"] == 2
    assert 0.02 <= found["rollout"] < 0.04 <= found["training"] < 0.06 and 0.06 <= found["update"] < 0.1
    assert block.nbytes / 2**20 <= found["memory"] < 200


def measured(ours, theirs):
    sides = {"ours": ours, "trl": 2 * theirs, "trl, answers only": theirs}
    return {
        side: dict.fromkeys(("update", "rollout", "training", "memory"), float(value)) for side, value in sides.items()
    }


def test_table_says_which_goals_are_met():
    setting = dataclasses.replace(SMALL, times_faster=3, times_smaller=2)
    met, missed = measured(1, 3), measured(1, 2.5)
    assert ratios(setting, met)["update"] == 3 and ratios(setting, met)["update, TRL as it is"] == 6
    assert row(setting, met).endswith("| update 3x met, memory 2x met |")
    assert row(setting, missed).endswith("| update 3x MISSED, memory 2x met |")
    assert row(SMALL, measured(1.1, 1)).endswith("| update 1x MISSED |"), "slower"
    assert row(setting, met).count("|") == HEADER.splitlines()[0].count("|")
    assert SMALL.token_ratio == 2 * 16 / 20
    assert [round(setting.token_ratio, 1) for setting in SETTINGS] == [1.8, 6.0, 7.0, 1.8, 6.0]


@pytest.mark.slow
@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_both_sides_make_updates(side, tmp_path):
    """A rollout in each, all answers as long as they may be."""
    module = importlib.import_module(f"benchmarks.trl.{side}")
    save_model(tmp_path)
    meter = Meter()
    module.run(tmp_path, SMALL, 2, meter)
    assert len(meter.ticks) == len(meter.rollouts) == 3
    assert all(value > 0 for value in meter.results().values())


@pytest.mark.slow
def test_the_projection_of_answers_only_changes_nothing(tmp_path, monkeypatch):
    """But what is computed: log-probabilities and entropies of the answers are the same."""
    import trl.trainer.utils as utils

    from benchmarks.trl.theirs import make_trainer, project_answers_only

    monkeypatch.setattr(utils, "_use_triton", utils._use_triton)  # put back afterwards
    rows = []
    projected = utils._ChunkedLogProbFunction.apply
    monkeypatch.setattr(
        utils._ChunkedLogProbFunction, "apply", lambda *args: rows.append(len(args[0])) or projected(*args)
    )
    save_model(tmp_path)
    trainer = make_trainer(tmp_path, SMALL, 1)
    ids = torch.randint(2, 2048, (3, 16), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)

    def values():
        return trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, 4, compute_entropy=True)[:2]

    whole = values()
    project_answers_only()
    for one, other in zip(values(), whole, strict=True):
        torch.testing.assert_close(one, other)
    assert rows == [3 * 15, 3 * 4]
