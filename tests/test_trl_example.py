"""The TRL example holds its rate, and docs/trl.md shows it as it is."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from examples import trl_constrained
from lightning_cgrpo import ConstrainedAdvantages, Constraint, Objective
from lightning_cgrpo.policies.tiny.text import make_tiny_model

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "trl.md").read_text(encoding="utf-8")


@pytest.fixture
def model(tmp_path):
    return str(make_tiny_model(tmp_path / "model", hidden_size=16))


def after_the_first_third(trainer, key):
    """The rate swings around its threshold, so a shorter part would measure the swing."""
    values = [line[key] for line in trainer.state.log_history if key in line]
    part = values[len(values) // 3 :]
    return sum(part) / len(part)


def test_the_example_runs(model, tmp_path):
    trainer = trl_constrained.main(model, 2, output_dir=str(tmp_path / "out"), logging_first_step=True)
    assert trainer.state.log_history[0]["threshold/vowels"] == 0.8


@pytest.mark.slow
def test_the_rate_settles_at_its_threshold_while_answers_get_shorter(model, tmp_path):
    trainer = trl_constrained.main(model, output_dir=str(tmp_path / "out"))
    assert 0.77 < after_the_first_third(trainer, "rate/vowels") < 0.85
    assert trainer.state.log_history[0]["rewards/brief/mean"] < -0.3
    assert after_the_first_third(trainer, "rewards/brief/mean") > -0.2


def test_the_page_shows_the_five_lines_of_the_example():
    block = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    shown = [line.split("  #")[0] for line in block.splitlines() if line]
    assert len(shown) <= 5
    text = (ROOT / "examples" / "trl_constrained.py").read_text(encoding="utf-8")
    assert [line for line in shown if line not in text] == []


def test_the_estimator_for_verl_gives_each_answer_its_advantage(monkeypatch):
    """On shuffled answers, as verl may hold them, with the columns as arrays of Python numbers."""
    registry = {}
    monkeypatch.setitem(sys.modules, "verl.trainer.ppo.core_algos", SimpleNamespace(ADV_ESTIMATOR_REGISTRY=registry))
    for name in ("verl", "verl.trainer", "verl.trainer.ppo"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    objective = Objective("speed", {"collision": Constraint(at_most=0.05)})
    (block,) = [text for text in re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL) if "ADV_ESTIMATOR_REGISTRY" in text]
    exec(block, {"np": np, "torch": torch, "group": 4, "advantages_of": ConstrainedAdvantages(objective)})

    draw = np.random.default_rng(0)
    speed, collision = draw.random((3, 4)).astype(np.float32), (draw.random((3, 4)) < 0.5).astype(np.float32)
    shuffled = draw.permutation(12)
    prompts = np.repeat(["b", "c", "a"], 4).astype(object)
    columns = {"speed": speed, "collision": collision}
    columns = {name: values.flatten()[shuffled].astype(object) for name, values in columns.items()}
    mask = torch.ones(12, 5)
    mask[:, 3:] = 0
    advantages, returns = registry["gdpo"](
        token_level_rewards=torch.zeros(12, 5), response_mask=mask, index=prompts[shuffled], non_tensor_batch=columns,
        config=None, batch=None,
    )  # fmt: skip

    # Prompts are sorted by name, and the scale is pooled, so the order of prompts is no matter.
    expected = ConstrainedAdvantages(objective)({"speed": torch.tensor(speed), "collision": torch.tensor(collision)})
    expected = expected.flatten().float()[torch.from_numpy(shuffled)]
    assert torch.allclose(advantages, expected[:, None] * mask, atol=1e-6) and returns is advantages
