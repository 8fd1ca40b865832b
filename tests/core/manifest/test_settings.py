"""Every setting of every shipped configuration is told when it changes or goes, or is listed as changing no number."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from lightning_cgrpo.cli.configuration import DEFAULTS, PACKAGED, file_layer, stacked
from lightning_cgrpo.core.manifest.settings import NUMBERLESS, SHOWING, UNSET, differing, settings_of

FILES = sorted(str(file.relative_to(PACKAGED)) for file in PACKAGED.rglob("*.yaml") if "studies" not in file.parts)


def paths(config: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all leaves, by plain recursion over mappings."""
    if isinstance(config, dict) and config:
        for key, value in config.items():
            yield from paths(value, (*path, key))
    else:
        yield path


def changes_no_number(config: Any, path: tuple[Any, ...]) -> bool:
    key = ".".join(str(part) for part in path if part not in ("init_args", "class_path"))
    if any(key == name or key.startswith(f"{name}.") for name in NUMBERLESS):
        return True
    if path[0] != "callbacks":
        return False
    callback = config["callbacks"][path[1]]
    name = callback.get("class_path") if isinstance(callback, dict) else callback
    return str(name).rpartition(".")[2] in SHOWING


@pytest.mark.parametrize("name", FILES)
def test_each_setting_is_told(name: str) -> None:
    config = stacked([file_layer(str(DEFAULTS)), file_layer(f"configs/{name}")])
    before = settings_of(config)
    for path in paths(config):
        if changes_no_number(config, path):
            continue
        for change in ("other", "gone"):
            changed = deepcopy(config)
            above = changed
            for part in path[:-1]:
                above = above[part]
            if change == "gone":
                if above[path[-1]] is None:  # null and left out are one setting
                    continue
                del above[path[-1]]
            else:
                above[path[-1]] = "another value"
            assert differing(before, settings_of(changed)), (path, change)


def test_what_only_shows_is_no_setting() -> None:
    shown = {
        "trainer": {"logger": False, "enable_progress_bar": False},
        "callbacks": {"a": {"class_path": "x.Pictures"}},
    }
    assert settings_of(shown) == {}


def test_arguments_of_another_class_are_not_listed() -> None:
    before = {"model.optimizer": "SGD", "model.optimizer.momentum": 0.9, "model.optimizer.lr": 0.1}
    now = {"model.optimizer": "Adam", "model.optimizer.eps": 1e-8, "model.optimizer.lr": 0.2}
    assert differing(before, now) == {"model.optimizer": ("SGD", "Adam")}
    assert differing({"a": 1}, {"a": 1.0}) == {} and differing({"a": 1}, {"a": True}) == {"a": (1, True)}
    assert differing({}, {"new": None}) == {} and differing({"a": 2}, {}) == {"a": (2, UNSET)}


def test_the_configurations_are_found() -> None:
    assert len(FILES) > 20 and Path("gridworld.yaml").name in FILES
