"""The example of an environment of one's own learns to drive fast where it may, and the page has its class."""

from pathlib import Path

import pytest

from examples import own_environment

ROOT = Path(__file__).parents[1]


def test_it_prints_rates_multipliers_and_the_card(folder, capsys):
    own_environment.main("2")
    text = capsys.readouterr().out
    assert "Update 2 of 2: reward" in text and "skids" in text and "λ" in text and "Run finished" in text


@pytest.mark.slow
def test_it_is_as_fast_as_two_percent_of_skids_allow(folder):
    metrics = own_environment.main("200").lightning_module.latest_metrics
    # Fast without ice and slow on ice is worth 16.4; a skid in 2 % of the steps buys 0.5 more.
    assert metrics["rate/skids"] < 0.04 and metrics["reward/mean"] > 15.5


def test_the_page_shows_the_example():
    page = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
    (block,) = [part for part in page.split("```py\n")[1:] if "IcyRoad-v0" in part]
    text = (ROOT / "examples" / "own_environment.py").read_text(encoding="utf-8")
    lines = {line.strip() for line in text.splitlines()}
    assert [line for line in block.split("```")[0].splitlines() if line.strip() not in lines] == []
