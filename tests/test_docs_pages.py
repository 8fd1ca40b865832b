"""The pages for newcomers: every command and every snippet runs, in the order of the page, in one folder.

A block with a title is a file. Other blocks of Python run, and so do the package's commands, a few updates long. A
study lists its runs.
"""

import doctest
import io
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from lightning_cgrpo.__main__ import RUNS, TOOLS, main

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "your_problem"
PAGES = ("start", "your_problem", "environments", "conversations", "callbacks")
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)
# The last ones stand, whatever a command says.
FEW = "--trainer.max_steps=2 --trainer.enable_progress_bar=false --trainer.enable_model_summary=false"


def blocks(page: str) -> list[tuple[str, str, str]]:
    return BLOCK.findall((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))


def commands(block: str) -> list[str]:
    return [line.partition("-m lightning_cgrpo ")[2] for line in block.splitlines() if "-m lightning_cgrpo " in line]


def run(command: str) -> str:
    name, *arguments = shlex.split(command, comments=True)
    few = {"fit": shlex.split(FEW), "study": ["--list"]}.get(name, shlex.split(FEW)[1:] if name in RUNS else [])
    with redirect_stdout(io.StringIO()) as said:
        main([name, *arguments, *few])
    return said.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_reader_s_folder(page, tmp_path, monkeypatch):
    for file in EXAMPLE.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    ran = 0
    for kind, title, text in blocks(page):
        if title:
            assert not Path(title).exists()
            Path(title).write_text(text, encoding="utf-8")
        elif kind == "bash":
            for command in commands(text):
                run(command)
                ran += 1
        elif kind == "python":
            exec(compile(text, f"{page}.md", "exec"), {"__name__": "__main__"})
            ran += 1
        elif kind == "pycon":
            example = doctest.DocTestParser().get_doctest(text, {}, page, None, 0)
            assert doctest.DocTestRunner().run(example).failed == 0
            ran += 1
    assert ran


@pytest.mark.parametrize("page", sorted(path.stem for path in (ROOT / "docs").glob("*.md")))
def test_commands_exist(page):
    for kind, _, text in blocks(page):
        for command in commands(text) if kind == "bash" else []:
            assert command.split()[0] in {**RUNS, **TOOLS}


def test_the_example_s_own_test_passes(tmp_path):
    for name in ("my_rewards.py", "test_my_rewards.py"):
        shutil.copy(EXAMPLE / name, tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "test_my_rewards.py"]
    tested = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert tested.returncode == 0 and "3 passed" in tested.stdout, tested.stdout


def test_the_example_trains_where_it_was_copied(tmp_path, monkeypatch):
    """Its functions are found beside the configuration, also from another folder."""
    shutil.copytree(EXAMPLE, tmp_path / "mine", ignore=shutil.ignore_patterns("__pycache__", "runs"))
    monkeypatch.chdir(tmp_path)
    data = "--data.path=mine/prompts.jsonl --data.test_path=mine/test.jsonl"
    short = "--data.prompts_per_update=2 --model.group_size=4 --callbacks.initial_rates=null"
    said = run(f"fit -c mine/your_problem.yaml {data} {short}")
    assert "Answers of update 0" in said and "explained" in said
    assert list(tmp_path.glob("runs/your_problem*/version_0/checkpoints/last.ckpt"))
