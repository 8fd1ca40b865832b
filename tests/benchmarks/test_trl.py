"""The comparison with TRL: what it times and how, at sizes of no interest."""

import importlib
import json

import pytest
import torch

from benchmarks.trl import released
from benchmarks.trl.measure import Meter
from benchmarks.trl.settings import Setting, save_model
from lightning_cgrpo.policies.tiny.text import make_tiny_model

SMALL = Setting(12, 4, 2, 0.02, 2)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_both_sides_make_updates(side, tmp_path):
    """A rollout in each, all answers as long as they may be."""
    module = importlib.import_module(f"benchmarks.trl.{side}")
    save_model(tmp_path)
    meter = Meter()
    module.run(tmp_path, SMALL, 2, meter)
    assert len(meter.ticks) == len(meter.seconds) == 3
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


@pytest.mark.slow
def test_the_released_job_has_thresholds_in_trl(tmp_path):
    """Bounds of the example on JSON and tokens, with TRL's own functions and no weights."""
    make_tiny_model(tmp_path / "model", hidden_size=16)
    prompt = [{"role": "user", "content": "Ann has 3 pens."}]
    row = json.dumps({"prompt": prompt, "name": "Ann", "number": 3}) + "\n"
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(row * 8)
    result = released.measured("thresholds", tmp_path / "model", tmp_path, seed=0, updates=2)
    assert result["rate/valid"] == 0 and 0 <= result["mean/short"] < 1
    weights = [result[f"weight/{name}"] for name in ("reward", "valid", "short")]
    assert sum(weights) == pytest.approx(1) and max(weights) > min(weights), "multipliers have moved"
    assert 0 < result["weight/valid"] <= result["weight/reward"], "far from its threshold: a fifth of the bound of 5"
    assert result["valid"] == 0 and result["tokens"] > 0 and result["cpu seconds"] > 0
