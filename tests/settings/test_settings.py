"""Settings of configurations and objects: each is told when it changes or goes, or refused, or changes no number."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_cgrpo import Optimization
from lightning_cgrpo.callbacks.run_manifest import check_continuable
from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.cli.command_line import CommandLine
from lightning_cgrpo.cli.preparation import import_names
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.run.manifest import Manifest, differences
from lightning_cgrpo.settings.configuration import DEFAULTS, PACKAGED
from lightning_cgrpo.settings.effects import EFFECTS, NUMBERLESS, Effect, effect_of, only_shows
from lightning_cgrpo.settings.objects import Stated, described
from lightning_cgrpo.settings.settings import UNSET, differing, settings_of
from tests.bases import base_of

FILES = [
    str(file.relative_to(PACKAGED))
    for file in sorted(PACKAGED.rglob("*.yaml"))
    if "studies" not in file.parts and file != DEFAULTS
]


class Parsed(CommandLine):
    """Reads a configuration, with all defaults of all classes, and makes nothing of it."""

    def instantiate_classes(self) -> None: ...

    def _run_subcommand(self, subcommand: str) -> None: ...


def parsed(*arguments: str) -> dict[str, Any]:
    import_names()
    config, _ = read_arguments("fit", list(arguments))
    whole: dict[str, Any] = Parsed("fit", config, []).config["fit"].as_dict()
    return whole


def leaves(config: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[dict[Any, Any], tuple[Any, ...]]]:
    """Each mapping with the path of one of its values, by plain recursion."""
    for key, value in list(config.items()):
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield config, (*path, key)


def changes_no_number(config: Any, path: tuple[Any, ...]) -> bool:
    key = ".".join(str(part) for part in path if part not in ("init_args", "class_path"))
    numberless = [name for name, effect in EFFECTS.items() if effect in NUMBERLESS]
    if any(key == name or key.startswith(f"{name}.") for name in numberless):
        return True
    if key.startswith("model.objective.constraints.") and path[-1] == "range" and path[-3] == "constraints":
        return True
    if path[0] != "callbacks" or len(path) == 1:
        return False
    callback = config["callbacks"][path[1]]
    name = callback.get("class_path") if isinstance(callback, dict) else callback
    return only_shows(str(name))


def answer(before: Any, now: Any) -> str:
    """What a resume answers to changed settings."""
    try:
        check_continuable(before, now)
    except UserError:
        return "refused"
    return "told" if differences(Manifest(before), Manifest(now)) else "silent"


def of_file(name: str) -> dict[str, Any]:
    """A file, over the file that it changes."""
    base = base_of(PACKAGED / name)
    return parsed(*(["-c", str(base)] if base else []), "-c", f"configs/{name}")


@pytest.mark.parametrize(
    "names", [["gridworld.yaml"], pytest.param(FILES, marks=pytest.mark.slow)], ids=["gridworld", "all"]
)
def test_each_setting_is_told(names: list[str]) -> None:
    counts: Counter[str] = Counter()
    known = set()
    for name in names:
        config = of_file(name)
        before = {part: settings_of({part: value}) for part, value in config.items()}
        for above, path in list(leaves(config)):
            value = above[path[-1]]
            if (*path, repr(value)) in known:
                continue
            known.add((*path, repr(value)))
            if changes_no_number(config, path):
                counts["change no number"] += 1
                continue
            above[path[-1]] = "another value"
            changed = answer(before[path[0]], settings_of({path[0]: config[path[0]]}))
            del above[path[-1]]
            # Null and left out are one setting.
            part = {path[0]: config[path[0]]} if path[0] in config else {}
            removed = "told" if value is None else answer(before[path[0]], settings_of(part))
            above[path[-1]] = value
            assert "silent" not in (changed, removed), (name, path)
            counts[changed] += 1
            counts[f"{removed} when removed"] += 1
    print(len(names), len(known), dict(counts))
    assert counts["told"] > 50 and counts["change no number"] > 20


def test_a_removed_line_counts_as_its_default() -> None:
    whole = settings_of(parsed("-c", "configs/gridworld.yaml", "--model.optimization.kl_weight=0.02"))
    removed = settings_of(parsed("-c", "configs/gridworld.yaml"))
    assert differing(whole, removed) == {"model.optimization.kl_weight": (0.02, 0.0)}


def test_the_range_of_a_mean_is_no_setting_and_a_column_of_that_name_is() -> None:
    def declared(where: int, span: list[int] | None) -> dict[str, Any]:
        return {"model": {"objective": {"constraints": {"c": {"range": span, "where": {"range": where}}}}}}

    assert settings_of(declared(1, [0, 1])) == settings_of(declared(1, None)) != settings_of(declared(2, None))


def test_what_only_shows_is_no_setting() -> None:
    callbacks = {"a": {"class_path": "lightning_cgrpo.callbacks.Pictures"}}
    assert settings_of({"trainer": {"logger": False, "enable_progress_bar": False}, "callbacks": callbacks}) == {}


def test_an_own_callback_that_only_shows_is_no_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/callbacks.md marks one: the name of the run and a resume say the same of it."""
    shows = "class Shows:\n    changes_learning = False\n\nclass Declares:\n    changes_learning: bool = False\n"
    counts = "class Counts:\n    changes_learning = True\n\nclass Pictures: ...\n"
    (tmp_path / "own_showing.py").write_text(shows + counts)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, only in {"Shows": True, "Declares": True, "Counts": False, "Pictures": False, "Unknown": False}.items():
        assert (settings_of({"callbacks": {"mine": {"class_path": f"own_showing.{name}"}}}) == {}) == only
    assert "own_showing" not in sys.modules
    with_own = Manifest(settings_of({"callbacks": {"mine": {"class_path": "own_showing.Pictures"}}}))
    told = differences(Manifest(settings_of({})), with_own)
    assert told == ["callbacks.mine unset -> own_showing.Pictures"], "though a shipped class has its name"


@pytest.mark.parametrize("container", ["('beam',)", "['beam']", "{'beam'}"])
def test_evaluation_arguments_may_stand_in_any_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, container: str
) -> None:
    name = f"own_arguments_{container.encode().hex()}"
    code = f"NAME = 'beam'\nclass Own:\n    evaluation_arguments = {container}\n"
    code += "class Named:\n    evaluation_arguments = [NAME]\n"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert effect_of("data.beam", f"{name}.Own") is Effect.EVALUATION
    assert effect_of("data.beam", f"{name}.Named") is Effect.LEARNING, "nothing is run"


def test_arguments_of_another_class_are_not_listed() -> None:
    before = {"model.optimizer": "SGD", "model.optimizer.momentum": 0.9, "model.optimizer.lr": 0.1}
    now = {"model.optimizer": "Adam", "model.optimizer.eps": 1e-8, "model.optimizer.lr": 0.2}
    assert differing(before, now) == {"model.optimizer": ("SGD", "Adam")}
    assert differing({"a": 1}, {"a": 1.0}) == {} and differing({"a": 1}, {"a": True}) == {"a": (1, True)}
    assert differing({}, {"new": None}) == {} and differing({"a": 2}, {}) == {"a": (2, UNSET)}


def test_the_configurations_are_found() -> None:
    assert len(FILES) > 20 and Path("gridworld.yaml").name in FILES


class _Holder:
    """An object that holds another one, and perhaps itself."""

    def __init__(self, other: Any = None, rate: float = 0.5) -> None:
        self.other, self._rate = other, rate


def test_objects_are_described_as_a_configuration_states_them() -> None:
    path = f"{__name__}._Holder"
    of_library = described(_Holder(pytest.approx(1)))["init_args"]["other"]
    assert of_library.endswith(".ApproxScalar"), "the arguments of libraries' objects are their own"
    inner = {"class_path": path, "init_args": {"other": [1, "a"], "rate": 0.25}}
    expected = {"class_path": path, "init_args": {"other": inner, "rate": 0.5}}
    assert described(_Holder(_Holder([1, "a"], 0.25))) == expected
    itself = _Holder()
    itself.other = itself
    assert described(itself)["class_path"] == path
    assert described(_Holder(list(range(2_000))))["init_args"] == {"rate": 0.5}, "data is no setting"
    assert settings_of({"model": described(Optimization(kl_weight=0.3))})["model.kl_weight"] == 0.3


class Judge(Stated):
    def __init__(self, key: str, words: frozenset[str] = frozenset()) -> None:
        self.key, self.words = key, words


def test_a_value_of_the_environment_is_written_as_a_short_hash(monkeypatch):
    found = []
    for secret in ("sk-1234567890", "sk-0987654321"):
        monkeypatch.setenv("JUDGE_OF_OBJECTS", secret)
        made = {"judge": Judge(secret), "plain": [secret, "a text of no secret"]}
        found.append(settings_of({"model": described(made)}))
        assert secret not in repr(found)
    assert found[0]["model.judge.key"].startswith("${oc.env:JUDGE_OF_OBJECTS} (")
    assert found[0] != found[1] and found[0]["model.plain"][1] == "a text of no secret"
    monkeypatch.setenv("JUDGE_OF_OBJECTS", "short")
    assert described("short") == "short"


def test_a_set_has_one_order():
    letters = [chr(number) for number in range(97, 123)]
    assert described(frozenset(letters)) == described({*reversed(letters)}) == letters
    assert described({2, "a", None}) == ["a", 2, None]
