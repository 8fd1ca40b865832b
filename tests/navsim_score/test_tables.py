"""The table of both stages on the screen."""

import pytest

from driving_scenes.errors import InputError
from lightning_cgrpo.core.output import print_table
from navsim_score.columns import SHORT
from navsim_score.tables import scores_table
from navsim_score.two_stage import Result, StageMeans


def stage(value, **columns):
    return StageMeans(2, 4, 0.25, dict.fromkeys(SHORT, value) | columns)


def lines(results, capsys):
    print_table(scores_table(results))
    return [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_rows_of_stages_and_only_known_columns(capsys):
    unknown = {"ADE@4s": None, "EC": None}
    shown = lines({"a [b]": Result("EPDMS", stage(0.5, **unknown), stage(0.75, **unknown), 2, 0.375)}, capsys)
    assert ["a", "S1", "2", "0.250", *["0.500"] * 7] in shown
    assert ["S2", "2", "0.250", *["0.750"] * 7] in shown
    assert ["both", "2", "0.375"] in shown
    assert ["[b]"] in shown  # no markup
    assert not any("ADE" in line or "@4s" in line for line in shown)


def test_drivers_of_two_dialects_share_no_table():
    both = {"one": Result("EPDMS, one stage, Reactive", stage(0.5)), "other": Result("PDMS v1.1", stage(0.5))}
    with pytest.raises(InputError, match="one dialect"):
        scores_table(both)
