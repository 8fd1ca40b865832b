"""The TRL example holds its rate, and docs/trl.md shows it as it is."""

import re
from pathlib import Path

import pytest

from examples import trl_constrained
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
