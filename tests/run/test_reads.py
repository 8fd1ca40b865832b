"""A reward is another reward if it is negated, wherever the sign comes from."""

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_cgrpo.core.output import SUMMARY
from lightning_cgrpo.run.reads import SMALL, Reads, reads_in, reads_of
from tests.refusals import refused

REWARD = "def reward(completions):\n    return [SIGN * len(text) for text in completions]\n"
Change = Callable[[Path], None]


def write(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


BY_MODULE = "SIGN = 1\n", "SIGN = -1\n"
HERE = "import os, json, importlib\nfrom pathlib import Path\n"
SOURCES = {
    "a file": ("SIGN = json.load(open('sign_here.json'))", "sign_here.json", "1", "-1"),
    "a file beside the module": (
        "SIGN = int((Path(__file__).parent / 'data' / 'sign.txt').read_text())", "data/sign.txt", "1", "-1"
    ),
    "a joined path": (
        "SIGN = int(open(os.path.join(os.path.dirname(__file__), 'data', 'sign.txt')).read())",
        *("data/sign.txt", "1", "-1"),
    ),
    "importlib": (
        "SIGN = importlib.import_module('sign_module_of_reads').SIGN", "sign_module_of_reads.py", *BY_MODULE
    ),
    "a computed import": (
        "SIGN = importlib.import_module('_'.join(['sign', 'computed'])).SIGN", "sign_computed.py", *BY_MODULE
    ),
    "an installed package": (
        "from package_of_reads import SIGN", "lib/site-packages/package_of_reads/__init__.py", *BY_MODULE
    ),
    "an installed package in place": ("from placed_of_reads import SIGN", "src/placed_of_reads.py", *BY_MODULE),
    "a docstring in use": (
        "import doc_of_reads\nSIGN = int(doc_of_reads.__doc__)", "doc_of_reads.py", '"""1"""\n', '"""-1"""\n'
    ),
}  # fmt: skip
"""By kind: how a module gets the sign, from which file, and the file's content before and after."""


class InPlace:
    """Finds a package as setuptools' finder of an editable installation does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        file = self.folder / "src" / f"{name}.py"
        return importlib.util.spec_from_file_location(name, file) if file.is_file() else None


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(folder / "lib/site-packages"))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, InPlace(folder)])
    return folder


@pytest.mark.parametrize("source", SOURCES)
def test_a_negated_reward_is_another(here: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    sign, file, before, after = SOURCES[source]
    write(here, "reward_of_reads.py", f"{HERE}{sign}\n{REWARD}")
    write(here, file, before)
    if source == "a computed import":  # told as far as it is imported
        module = importlib.util.module_from_spec(InPlace(here).find_spec("none") or spec_of(here / file))
        monkeypatch.setitem(sys.modules, "sign_computed", module)
    importlib.invalidate_caches()
    found = [reads_of(["reward_of_reads.reward"]) for _ in range(2)]
    assert found[0] == found[1]
    write(here, file, after)
    assert reads_of(["reward_of_reads.reward"]) != found[0]


def spec_of(file: Path) -> importlib.machinery.ModuleSpec:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    return spec


@pytest.mark.parametrize("code", ["os.environ['SIGN']", "os.environ.get('SIGN', 1)", "os.getenv('SIGN', '1')"])
def test_variables_of_the_environment(here: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    write(here, "reward_of_reads.py", f"import os\nSIGN = int({code})\n{REWARD}")
    found = []
    for value in ("1", "-1"):
        monkeypatch.setenv("SIGN", value)
        found.append(reads_of(["reward_of_reads.reward"]).variables)
    assert found[0] != found[1] and all(len(fingerprint) == 4 for [fingerprint] in map(dict.values, found))
    monkeypatch.delenv("SIGN")
    assert reads_of(["reward_of_reads.reward"]).variables == {"SIGN": "unset"}


def test_the_schema_of_a_tool_is_its_docstring(here: Path) -> None:
    tool = 'def add(a: int) -> int:\n    """Adds {}."""\n    return a\n'
    settings = {"model.sampler.tools": ["tools_of_reads.add"], "model.task.signals": {"r": "tools_of_reads.add"}}
    found = []
    for text in ("numbers", "letters"):
        write(here, "tools_of_reads.py", tool.format(text))
        found.append((reads_in(settings), reads_of(["tools_of_reads.add"])))
    assert found[0][0] != found[1][0] and found[0][1] == found[1][1], "of no tool, a docstring is no difference"


def test_listed_files_folders_and_packages(here: Path) -> None:
    package = "lib/site-packages/listed_of_reads.py"
    for file, listed in {"signs/one.txt": "signs", "other.bin": "other.bin", package: "listed_of_reads"}.items():
        write(here, file, "1")
        settings = {"model.task.reads": [listed]}
        importlib.invalidate_caches()
        before = reads_in(settings)
        write(here, file, "-1")
        assert reads_in(settings) != before == before
    words = "Expected reads to list files, folders or packages, but there is no 'gone'"
    assert words in refused(reads_in, {"model.task.reads": ["gone"]})


def test_what_changes_no_reward_is_no_difference(here: Path) -> None:
    """Comments, files that are written, large installed packages of equal version, and other programs' files."""
    write(here, "reward_of_reads.py", "open('log.txt', 'w').write('x')\nSIGN = 1\n" + REWARD)
    others = ["torch.nn.Linear", "lightning_cgrpo.Task", "prompts.jsonl", "no text. At all."]
    before = reads_of(["reward_of_reads.reward", *others])
    assert [*before.code] == ["reward_of_reads"] and [*before.versions] == ["torch"] and not before.found
    write(here, "log.txt", "x")
    write(here, "prompts.jsonl", "x")
    write(here, "reward_of_reads.py", "open('log.txt', 'w').write('x')\nSIGN = 1  # a comment\n" + REWARD)
    assert reads_of(["reward_of_reads.reward", "torch.nn.Linear"]) == before
    assert reads_of([]) == Reads()


def test_files_that_change_by_themselves_are_no_inputs(here: Path) -> None:
    """Files that the reward writes, checkpoints, files of a run and of the operating system."""
    body = """import json, os
from pathlib import Path
CACHE = 'cache.json'
OTHER = Path('other.json')
def load():
    return json.loads(open(CACHE).read()), OTHER.read_text(), open('/proc/self/stat'), open('best.ckpt')
def keep(values):
    with open(CACHE, 'w') as file:
        json.dump(values, file)
    OTHER.write_text('')
    Path('third.json').open('w').write('')
NAMES = 'third.json', 'runs/a/version_0/metrics.csv', 'kept.json'
"""
    for name in ("cache.json", "other.json", "third.json", "best.ckpt", "runs/a/version_0/metrics.csv", "kept.json"):
        write(here, name, "1")
    write(here, f"runs/a/version_0/{SUMMARY}", "{}")
    write(here, "reward_of_reads.py", body + REWARD)
    assert [*reads_of(["reward_of_reads.reward"]).found] == ["reward_of_reads, kept.json"]


def test_a_large_file_is_not_read_and_an_unreadable_one_is_no_error(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here, "reward_of_reads.py", "FILES = 'large.bin', 'small.txt'\n" + REWARD)
    write(here, "small.txt", "1")
    with (here / "large.bin").open("wb") as file:
        file.truncate(SMALL + 1)

    def unreadable(file: Path) -> str:
        raise PermissionError(file)

    monkeypatch.setattr("lightning_cgrpo.run.reads.file_fingerprint", unreadable)
    found = reads_of(["reward_of_reads.reward"]).found
    [(name, told)] = found.items()
    assert name == "reward_of_reads, large.bin" and told.startswith(f"{SMALL + 1} bytes")
    assert "to list what can be read, but got 'small.txt'" in refused(reads_in, {"model.task.reads": ["small.txt"]})


@pytest.mark.parametrize("text", ["~~~", "~", "~nobody_of_this_name/sign", "\\0", "$NOT_SET/a", "x" * 5000])
def test_any_text_in_a_reward_is_read_without_an_error(here: Path, text: str) -> None:
    write(here, "reward_of_reads.py", f"SIGN, FENCE = 1, '{text}'\n{REWARD}")
    assert [*reads_of(["reward_of_reads.reward"]).code] == ["reward_of_reads"]
