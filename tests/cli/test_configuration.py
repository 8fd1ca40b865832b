"""Files and overrides become one configuration."""

import copy
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from lightning_cgrpo.cli import configuration
from lightning_cgrpo.cli.configuration import PACKAGED, ConfigError, file_layer, find, merge, override, read
from lightning_cgrpo.errors import did_you_mean


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without configs, as a user's may be."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, text: str) -> str:
    Path(name).write_text(textwrap.dedent(text), encoding="utf-8")
    return name


def build(files: Iterable[str], overrides: Iterable[tuple[str, str]]) -> dict[str, Any]:
    return configuration.build([*map(file_layer, files), *(override(*pair) for pair in overrides)])


def made(text: str, *overrides: tuple[str, str]) -> dict[str, Any]:
    return build([write("given.yaml", text)], overrides)


def refused(*arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        build(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


BASE = """
    model:
      class_path: pkg.Model
      init_args:
        group_size: 8
        policy: {class_path: pkg.MLP, init_args: {hidden: [64, 64], dropout: 0.1}}
    callbacks:
      multipliers: {class_path: pkg.Lagrangian, init_args: {controller: {class_path: pkg.Adam, init_args: {lr: 0.1}}}}
      samples: {class_path: pkg.Samples}
"""


class TestMerge:
    def test_single_values_of_nested_settings_change(self) -> None:
        first = write("first.yaml", BASE)
        second = write("second.yaml", "model: {init_args: {policy: {init_args: {hidden: [8]}}}}")
        merged = build([first, second], [])
        expected = build([first], [])
        assert expected["model"]["init_args"]["policy"]["init_args"] == {"hidden": [64, 64], "dropout": 0.1}
        expected["model"]["init_args"]["policy"]["init_args"]["hidden"] = [8]
        assert merged == expected

    def test_later_files_win_and_the_command_line_last(self) -> None:
        files = [write(f"{n}.yaml", f"a: {n}\nb{n}: {n}\nc: {{d: {n}}}") for n in range(3)]
        assert build(files, []) == {"a": 2, "b0": 0, "b1": 1, "b2": 2, "c": {"d": 2}}
        assert build(files, [("a", "7"), ("c.d", "8"), ("c.e", "9"), ("a", "10")]) == {
            "a": 10, "b0": 0, "b1": 1, "b2": 2, "c": {"d": 8, "e": 9}
        }  # fmt: skip

    def test_init_args_may_be_left_out(self) -> None:
        expected = made(BASE)
        expected["model"]["init_args"]["policy"]["init_args"]["hidden"] = [8]
        for key in ("model.policy.hidden", "model.init_args.policy.hidden", "model.policy.init_args.hidden"):
            assert made(BASE, (key, "[8]")) == expected
        stacked = build([write("a.yaml", BASE), write("b.yaml", "model: {policy: {hidden: [8]}}")], [])
        assert stacked == expected

    def test_another_class_drops_the_old_ones_arguments(self) -> None:
        key = "callbacks.multipliers.controller"
        for overrides in (
            [(key, "pkg.PID"), (f"{key}.kp", "1")],
            [(f"{key}.class_path", "pkg.PID"), (f"{key}.init_args.kp", "1")],
            [(key, "{class_path: pkg.PID, init_args: {kp: 1}}")],
        ):
            controller = made(BASE, *overrides)["callbacks"]["multipliers"]["init_args"]["controller"]
            assert controller == {"class_path": "pkg.PID", "init_args": {"kp": 1}}

    def test_the_same_class_keeps_them_also_by_its_short_name(self) -> None:
        key = "callbacks.multipliers.controller"
        for name in ("pkg.Adam", "Adam", "other.path.Adam"):
            controller = made(BASE, (key, name))["callbacks"]["multipliers"]["init_args"]["controller"]
            assert controller == {"class_path": name, "init_args": {"lr": 0.1}}

    def test_a_class_given_as_a_string_takes_arguments_afterwards(self) -> None:
        text = "model: {estimator: pkg.GDPO, other: 3}"
        assert made(text)["model"]["estimator"] == "pkg.GDPO"
        expected = {"class_path": "pkg.GDPO", "init_args": {"eps": 0.1}}
        assert made(text, ("model.estimator.eps", "0.1"))["model"]["estimator"] == expected
        assert made("a: 1", ("b", "GDPO"), ("b.eps", "0.1"))["b"] == {**expected, "class_path": "GDPO"}
        other = {"class_path": "pkg.Other"}
        assert made(text, ("model.estimator", "{class_path: pkg.Other}"))["model"]["estimator"] == other

    def test_strings_that_are_no_class_are_replaced_by_mappings(self) -> None:
        assert made("reward: goal", ("reward", "{goal: 1, speed: 2}")) == {"reward": {"goal": 1, "speed": 2}}
        assert made("reward: Goal", ("reward", "{Goal: 1, speed: 2}")) == {"reward": {"Goal": 1, "speed": 2}}
        assert made("precision: 16-mixed", ("precision", "{a: 1}")) == {"precision": {"a": 1}}

    def test_null_removes_a_callback_and_a_class_brings_one_back(self) -> None:
        assert made(BASE, ("callbacks.samples", "null"))["callbacks"]["samples"] is None
        back = made(BASE, ("callbacks.multipliers", "null"), ("callbacks.multipliers", "pkg.Fixed"))
        assert back["callbacks"]["multipliers"] == "pkg.Fixed"
        stacked = build([write("a.yaml", BASE), write("b.yaml", "callbacks: {multipliers: null}")], [])
        assert stacked["callbacks"] == {"multipliers": None, "samples": {"class_path": "pkg.Samples"}}

    def test_lists_are_replaced(self) -> None:
        policy = made(BASE, ("model.policy.hidden", "[1]"))["model"]["init_args"]["policy"]
        assert policy["init_args"]["hidden"] == [1]

    def test_what_is_merged_is_left_alone(self) -> None:
        base = {"a": {"class_path": "pkg.A", "init_args": {"x": {"y": 1}}}}
        override = {"a": {"x": {"z": 2}}}
        kept = copy.deepcopy((base, override))
        merged = merge(base, override)
        assert merged == {"a": {"class_path": "pkg.A", "init_args": {"x": {"y": 1, "z": 2}}}}
        assert (base, override) == kept


class TestValues:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("1e-3", 0.001),
            ("1E5", 100000.0),
            ("5.0e-4", 0.0005),
            ("0.99", 0.99),
            ("8", 8),
            ("true", True),
            ("null", None),
            ("[1, 2e-1]", [1, 0.2]),
            ("{reward: 1.0, lava: 1e-1}", {"reward": 1.0, "lava": 0.1}),
            ("pkg.GDPO", "pkg.GDPO"),
            ("'1'", "1"),
            ("a: b", "a: b"),
            ("@x", "@x"),
        ],
    )
    def test_on_the_command_line(self, text: str, value: Any) -> None:
        (got,) = build([], [("key", text)]).values()
        assert got == value and type(got) is type(value)

    def test_in_files(self) -> None:
        assert made("lr: 1e-3") == {"lr": 0.001}

    def test_dots_make_levels(self) -> None:
        assert build([], [("a.b.c", "1"), ("a.d", "2")]) == {"a": {"b": {"c": 1}, "d": 2}}


class TestInterpolation:
    TEXT = """
        seed_everything: 3
        model: {class_path: pkg.Model, init_args: {group_size: 8, seed: "${seed_everything}"}}
        data: {size: "${model.init_args.group_size}"}
    """

    def test_follows_overrides(self) -> None:
        assert made(self.TEXT)["data"]["size"] == 8
        changed = made(self.TEXT, ("model.group_size", "16"), ("seed_everything", "5"))
        assert changed["data"]["size"] == 16 and changed["model"]["init_args"]["seed"] == 5

    def test_follows_later_files(self) -> None:
        config = build([write("a.yaml", self.TEXT), write("b.yaml", "model: {group_size: 32}")], [])
        assert config["data"]["size"] == 32

    def test_can_be_overridden_and_given_on_the_command_line(self) -> None:
        config = made(self.TEXT, ("data.size", "1"), ("data.more", "${data.size}"))
        assert config["data"] == {"size": 1, "more": 1}

    def test_a_typo_is_one_line_with_a_suggestion(self) -> None:
        message = refused([write("a.yaml", self.TEXT)], [("data.size", "${model.init_args.group_sise}")])
        assert message == (
            "The value of 'data.size' can't be resolved: Interpolation key 'model.init_args.group_sise' not found. "
            "Did you mean 'model.init_args.group_size'?"
        )
        message = refused([write("b.yaml", "seed_everything: 1\nmodel: {seed: '${seed_everythin}'}")], [])
        assert message.startswith("The value of 'model.seed' can't be resolved")
        assert message.endswith("Did you mean 'seed_everything'?")

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("${foo:bar}", "Unsupported interpolation type foo"),
            ("${a.key}", "Recursive interpolation detected"),
            ("${bro", "no viable alternative at input '${bro'"),
        ],
    )
    def test_other_mistakes_are_one_line_that_names_the_key(self, text: str, problem: str) -> None:
        message = refused([], [("a.key", text)])
        assert message.startswith("The value of 'a.key' can't be re") and problem in message


class TestFiles:
    def test_packaged_files_are_found_from_anywhere(self, elsewhere: Path) -> None:
        for name in ("configs/gridworld.yaml", "gridworld.yaml"):
            assert find(name) == PACKAGED / "gridworld.yaml"
        assert find("configs/ablations/gridworld/gdpo.yaml") == PACKAGED / "ablations" / "gridworld" / "gdpo.yaml"
        config = build(["configs/gridworld.yaml", "configs/ablations/gridworld/gdpo.yaml"], [("seed_everything", "4")])
        assert config["seed_everything"] == 4
        assert config["model"]["init_args"]["estimator"] == {"class_path": "lightning_cgrpo.GDPO"}

    def test_a_file_of_the_users_comes_first(self, elsewhere: Path) -> None:
        (elsewhere / "configs").mkdir()
        write("configs/gridworld.yaml", "mine: 1")
        assert build(["configs/gridworld.yaml"], []) == {"mine": 1}

    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("configs/gridwrld.yaml", "configs/gridworld.yaml"),
            ("gridwrld.yaml", "configs/gridworld.yaml"),
            ("configs/ablation/gridworld/gdpo.yaml", "configs/ablations/gridworld/gdpo.yaml"),
            ("/configs/gridworld.yaml", "configs/gridworld.yaml"),
        ],
    )
    def test_missing(self, name: str, meant: str) -> None:
        assert refused([name], []) == f"There is no configuration file '{name}'. Did you mean '{meant}'?"

    def test_missing_beside_the_users_own(self) -> None:
        Path("mine.yaml").write_text("seed_everything: 1\n")
        assert refused(["mien.yaml"], []).endswith("Did you mean 'mine.yaml'?")

    @pytest.mark.parametrize(
        ("text", "line", "problem"),
        [
            ("a: 1\nb: [1, 2\nc: 3\n", 3, "did not find expected ',' or ']'"),
            ("a: 1\nb:\n\tc: 3\n", 3, "found character that cannot start any token"),
            ("a: 1\nb: c: d\n", 2, "mapping values are not allowed in this context"),
            ("a: 1\nb: 2\na: 3\n", 3, "found duplicate key a"),
        ],
    )
    def test_bad_yaml_names_file_and_line(self, text: str, line: int, problem: str) -> None:
        message = refused([write("bad.yaml", text)], [])
        assert message.startswith(f"bad.yaml can't be read: line {line}: ")
        # PyYAML's C and Python parsers word it differently.
        assert problem in message or "expected" in message

    def test_bad_interpolation_names_the_file(self) -> None:
        assert refused([write("bad.yaml", "a: ${b")], []).startswith("bad.yaml can't be read: ")

    def test_not_utf_8(self) -> None:
        Path("bad.yaml").write_bytes(b"a: \xff\xfe")
        assert refused(["bad.yaml"], []).startswith("bad.yaml can't be read: ")

    def test_not_a_mapping(self) -> None:
        message = "Expected list.yaml to hold a mapping of settings, but got list."
        assert refused([write("list.yaml", "- a\n- b")], []) == message

    def test_empty(self) -> None:
        assert build([write("empty.yaml", "")], []) == build([write("comment.yaml", "# nothing\n")], []) == {}

    def test_read_leaves_interpolations(self) -> None:
        assert read(Path(write("a.yaml", "a: 1\nb: ${a}"))) == {"a": 1, "b": "${a}"}


class TestBase:
    def test_a_file_is_laid_over_its_base(self):
        write("far.yaml", "{a: 1, b: 1, c: 1}")
        write("near.yaml", "{base: far.yaml, b: 2, c: 2}")
        assert build([write("mine.yaml", "{base: near.yaml, c: 3}")], []) == {"a": 1, "b": 2, "c": 3}

    @pytest.mark.parametrize("base", ["nowhere.yaml", "mine.yaml", "around.yaml"])
    def test_a_base_is_another_file(self, base):
        write("around.yaml", "base: mine.yaml")
        with pytest.raises(ConfigError, match=r"Expected base in .* to name another file"):
            build([write("mine.yaml", f"base: {base}")], [])

    def test_a_misspelled_callback_is_found(self):
        write("below.yaml", "callbacks: {multipliers: {class_path: LagrangianCallback}}")
        with pytest.raises(ConfigError, match="Did you mean 'multipliers'"):
            build([write("mine.yaml", "{base: below.yaml, callbacks: {multiplier: null}}")], [])


def test_did_you_mean() -> None:
    assert did_you_mean("max_step", ["max_steps", "min_steps"]) == " Did you mean 'max_steps'?"
    assert did_you_mean("xyzzy", ["max_steps"]) == ""
