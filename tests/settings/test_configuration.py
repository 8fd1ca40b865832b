"""Files and overrides become one configuration."""

import copy
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from lightning_cgrpo.settings import configuration
from lightning_cgrpo.settings.configuration import PACKAGED, file_layer, find_file, merge, override_layer, read_file
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("folder")


def write(name: str, text: str) -> str:
    Path(name).write_text(textwrap.dedent(text), encoding="utf-8")
    return name


def build(files: Iterable[str], overrides: Iterable[tuple[str, str]] = ()) -> dict[str, Any]:
    return configuration.build([*map(file_layer, files), *(override_layer(*pair) for pair in overrides)])


def made(text: str, *overrides: tuple[str, str]) -> dict[str, Any]:
    return build([write("given.yaml", text)], overrides)


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
CONTROLLER = "callbacks.multipliers.controller"


class TestMerge:
    @pytest.mark.parametrize("key", ["model.policy.hidden", "model.init_args.policy.hidden"])
    def test_single_values_of_nested_settings_change(self, key: str) -> None:
        expected = made(BASE)
        expected["model"]["init_args"]["policy"]["init_args"]["hidden"] = [8]
        assert made(BASE, (key, "[8]")) == expected
        assert build([write("a.yaml", BASE), write("b.yaml", "model: {policy: {hidden: [8]}}")]) == expected

    def test_later_files_win_and_the_command_line_last(self) -> None:
        files = [write(f"{n}.yaml", f"a: {n}\nb{n}: {n}\nc: {{d: {n}}}") for n in range(3)]
        assert build(files) == {"a": 2, "b0": 0, "b1": 1, "b2": 2, "c": {"d": 2}}
        assert build(files, [("a", "7"), ("c.d", "8"), ("c.e", "9"), ("a", "10")]) == {
            "a": 10, "b0": 0, "b1": 1, "b2": 2, "c": {"d": 8, "e": 9}
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("overrides", "controller"),
        [
            ([(CONTROLLER, "pkg.PID"), (f"{CONTROLLER}.kp", "1")], {"class_path": "pkg.PID", "init_args": {"kp": 1}}),
            ([(f"{CONTROLLER}.class_path", "pkg.PID")], {"class_path": "pkg.PID"}),
            ([(CONTROLLER, "{class_path: pkg.PID}")], {"class_path": "pkg.PID"}),
            # The same class keeps its arguments, also by its short name.
            ([(CONTROLLER, "Adam")], {"class_path": "Adam", "init_args": {"lr": 0.1}}),
            ([(CONTROLLER, "other.Adam")], {"class_path": "other.Adam", "init_args": {"lr": 0.1}}),
        ],
    )
    def test_another_class_drops_the_old_ones_arguments(self, overrides: Any, controller: Any) -> None:
        assert made(BASE, *overrides)["callbacks"]["multipliers"]["init_args"]["controller"] == controller

    @pytest.mark.parametrize(
        ("text", "override", "value"),
        [
            ("key: pkg.GDPO", ("key.eps", "0.1"), {"class_path": "pkg.GDPO", "init_args": {"eps": 0.1}}),
            ("key: pkg.GDPO", ("key", "{class_path: pkg.Other}"), {"class_path": "pkg.Other"}),
            # Strings that are no class are replaced by mappings, and lists by lists.
            ("key: Goal", ("key", "{Goal: 1, speed: 2}"), {"Goal": 1, "speed": 2}),
            ("key: 16-mixed", ("key", "{a: 1}"), {"a": 1}),
            ("key: [1, 2]", ("key", "[3]"), [3]),
            ("key: [1, 2]", ("key+", "3"), [1, 2, 3]),
            ("key: {class_path: pkg.Samples}", ("key", "null"), None),
            ("key: null", ("key", "pkg.Fixed"), "pkg.Fixed"),
        ],
    )
    def test_values_of_other_kinds(self, text: str, override: tuple[str, str], value: Any) -> None:
        assert made(text, override)["key"] == value

    def test_what_is_merged_is_left_alone(self) -> None:
        base = {"a": {"class_path": "pkg.A", "init_args": {"x": {"y": 1}}}}
        change = {"a": {"x": {"z": 2}}}
        kept = copy.deepcopy((base, change))
        assert merge(base, change) == {"a": {"class_path": "pkg.A", "init_args": {"x": {"y": 1, "z": 2}}}}
        assert (base, change) == kept


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("true", True),
        ("null", None),
        ("[1, 2e-1]", [1, 0.2]),
        ("{reward: 1.0, lava: 1e-1}", {"reward": 1.0, "lava": 0.1}),
        ("'1'", "1"),
        ("a: b", "a: b"),
        ("@x", "@x"),
        ("Put the answer after ####", "Put the answer after ####"),
        ("You are brief.\nFormat: one number", "You are brief.\nFormat: one number"),
        ("#1", "#1"),
        ("[1, 2] # two", [1, 2]),
    ],
)
def test_values_on_the_command_line(text: str, value: Any) -> None:
    (parsed,) = build([], [("key", text)]).values()
    assert parsed == value and type(parsed) is type(value)


class TestInterpolation:
    TEXT = """
        seed_everything: 3
        model: {class_path: pkg.Model, init_args: {group_size: 8, seed: "${seed_everything}"}}
        data: {size: "${model.init_args.group_size}"}
    """

    def test_follows_files_and_overrides(self) -> None:
        assert made(self.TEXT)["data"]["size"] == 8
        changed = made(self.TEXT, ("model.group_size", "16"), ("seed_everything", "5"), ("data.more", "${data.size}"))
        assert changed["data"] == {"size": 16, "more": 16} and changed["model"]["init_args"]["seed"] == 5
        files = [write("a.yaml", self.TEXT), write("b.yaml", "model: {group_size: 32}")]
        assert build(files)["data"]["size"] == 32

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("${b.group_sise}", "Did you mean 'b.group_size'?"),
            ("${a.key}", "Recursive interpolation detected"),
            ("${oc.env:NOWHERE}", "Environment variable 'NOWHERE' not found"),
        ],
    )
    def test_a_mistake_is_one_line_that_names_the_key(self, text: str, problem: str) -> None:
        message = refused(build, [write("b.yaml", "b: {group_size: 1}")], [("a.key", text)])
        assert message.startswith("The value of 'a.key' can't be re") and problem in message


class TestFiles:
    def test_packaged_files_are_found_from_anywhere_after_the_users(self, folder: Path) -> None:
        for name in ("configs/gridworld.yaml", "gridworld.yaml"):
            assert find_file(name) == PACKAGED / "gridworld.yaml"
        (folder / "configs").mkdir()
        write("configs/gridworld.yaml", "mine: 1")
        assert build(["configs/gridworld.yaml"]) == {"mine": 1}

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            (b"a: 1\nb: [1, 2\nc: 3\n", "line 3"),
            (b"a: 1\nb: 2\na: 3\n", "duplicate key a"),
            (b"a:\n\tb: 2\n", "line 2: found character that cannot start any token, try spaces instead of the tab."),
            (b"- a\n- b", "a mapping of settings, but got list."),
            (b"a: \xff\xfe", "bad.yaml can't be read: "),
            # a base is another file, and is read before names are checked
            (b"base: nowhere.yaml", "to name another file"),
            (b"base: bad.yaml", "to name another file"),
            (b"base: around.yaml", "to name another file"),
            (b"{base: below.yaml, callbacks: {multiplier: null}}", "Did you mean 'multipliers'"),
        ],
    )
    def test_bad_yaml_names_file_and_line(self, text: bytes, problem: str) -> None:
        write("around.yaml", "base: bad.yaml")
        write("below.yaml", "callbacks: {multipliers: {class_path: LagrangianCallback}}")
        Path("bad.yaml").write_bytes(text)
        message = refused(build, ["bad.yaml"])
        assert ("bad.yaml" in message or b"callbacks" in text) and problem in message
        for name, meant in (("configs/gridwrld.yaml", "configs/gridworld.yaml"), ("bda.yaml", "bad.yaml")):
            assert refused(build, [name]).endswith(f"Did you mean '{meant}'?")

    def test_what_is_read(self) -> None:
        assert build([write("comment.yaml", "# nothing\n")]) == {}
        assert build([write("mark.yaml", "\ufeffa: 1e-3")]) == {"a": 0.001}
        assert read_file(Path(write("a.yaml", "a: 1\nb: ${a}"))) == {"a": 1, "b": "${a}"}

    def test_a_file_is_laid_over_its_base(self) -> None:
        write("far.yaml", "{a: 1, b: 1, c: 1}")
        write("near.yaml", "{base: far.yaml, b: 2, c: 2}")
        assert build([write("mine.yaml", "{base: near.yaml, c: 3}")]) == {"a": 1, "b": 2, "c": 3}
