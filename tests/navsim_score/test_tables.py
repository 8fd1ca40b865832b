"""Tables on the screen."""

import pytest
import rich
from rich.cells import cell_len

from driving_scenes.errors import InputError
from navsim_score.columns import COLUMNS, EXTENDED_COMFORT, SHORT
from navsim_score.tables import show_scores, show_stages
from navsim_score.two_stage import Result, StageMeans


def stage(value, **columns):
    return StageMeans(2, 4, 0.25, dict.fromkeys(SHORT, value) | columns)


def lines(results, capsys):
    show_stages(results)
    return [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_rows_of_stages_and_only_known_columns(capsys):
    unknown = {"ADE@4s": None, "EC": None}
    shown = lines({"a [b]": Result("EPDMS", stage(0.5, **unknown), stage(0.75, **unknown), 2, 0.375)}, capsys)
    name = "a [b]: 2 scenes, 2 follow-ups of 2; malformed 0.250, 0.250"  # no markup
    assert name.split() in shown
    assert ["S1", *["0.500"] * 9] in shown
    assert ["S2", *["0.750"] * 9] in shown
    assert ["both", "0.375"] in shown
    assert not any("ADE@4s" in line or "EC" in line for line in shown)


def test_drivers_of_two_dialects_share_no_table():
    both = {"one": Result("EPDMS, one stage, Reactive", stage(0.5)), "other": Result("PDMS v1.1", stage(0.5))}
    with pytest.raises(InputError, match="one dialect"):
        show_stages(both)


@pytest.fixture
def screen(capsys):
    """Sets the width of the screen, and returns the lines that a function prints on it."""

    def printed(width, show, *arguments):
        rich.reconfigure(width=width)
        show(*arguments)
        return capsys.readouterr().out.splitlines()

    yield printed
    rich.reconfigure()


LONG = "my_planner_with_a_long_name_after_epoch_30"


def test_both_stages_fit_eighty_columns(screen):
    every = stage(0.123)
    shown = screen(80, show_stages, {name: Result("EPDMS", every, every, 2, 0.456) for name in ("human", LONG)})
    names = [line for line in shown if ":" in line[1:]]
    assert [line.split(":")[0] for line in names] == ["Driving", "human", LONG]
    assert max(map(cell_len, [line for line in shown if not line.startswith(LONG)])) <= 80
    assert sum(line.split()[1:] == ["0.123"] * 11 for line in shown) == 4


def test_a_narrow_screen_cuts_no_column(screen):
    shown = screen(40, show_stages, {"human": Result("EPDMS", stage(0.123))})
    assert any(line.split()[1:] == ["0.123"] * 11 for line in shown)


def scored(name, **more):
    values = dict.fromkeys((*COLUMNS, EXTENDED_COMFORT, "epdms"), 0.123)
    return {"tag": name, "error": None, "dialect": "EPDMS", "scores": {"EPDMS": 0.123}} | values | more


@pytest.mark.parametrize("width", [80, 70, 120])
@pytest.mark.parametrize("names", [("a", LONG), ("a", "名" * 30), ("[b]", "c")])
def test_names_and_scores_are_whole(screen, width, names):
    one = screen(width, show_scores, {LONG: [scored(name) for name in names]})
    many = screen(width, show_scores, {name: [scored(None)] * 12 for name in names})
    for shown in (one, many):
        assert max(map(cell_len, shown)) <= width
        first_words = [line.split()[0] for line in shown]
        assert all(first_words.count(name) == 1 for name in names)
        assert sum(line.split()[-10:] == ["0.123"] * 10 for line in shown) == 3
        assert any("EPDMS" in line and "EC" in line for line in shown)


def test_a_name_stands_beside_its_numbers_where_there_is_room(screen):
    shown = screen(130, show_scores, {"scene": [scored(name) for name in ("a", LONG)]})
    assert [line.split()[-1] for line in shown if line.startswith(LONG)] == ["0.123"]
