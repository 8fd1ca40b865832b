"""The README and the tour do what they say."""

import json
import re
import shlex
from pathlib import Path

import pytest

from lightning_cgrpo.__main__ import RUNS, TOOLS, read_arguments
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from tests.forked import forked, run_script

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README + TOUR, re.DOTALL)
COMMANDS = [
    line.partition("-m lightning_cgrpo ")[2]
    for kind, block in BLOCKS
    if kind == "bash"
    for line in block.splitlines()
    if "-m lightning_cgrpo " in line
]


def test_quick_start_is_two_commands_that_install_themselves():
    section = README.partition("## Quick start")[2].partition("\n## ")[0]
    commands = [block.strip() for kind, block in re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL)]
    assert len(commands) == 2
    assert all("\n" not in command and "pip install" in command for command in commands)
    assert "lightning_cgrpo fit" in commands[0]
    assert commands[1].endswith("-m pytest")


def test_ci_finds_the_test_command():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    pattern = re.search(r"grep -m1 '(.*?)' README.md", script)
    assert pattern is not None
    assert next(line for line in README.splitlines() if re.search(pattern[1], line)).startswith("python3 -m venv")


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command):
    name, *arguments = shlex.split(command)
    assert name in {**RUNS, **TOOLS}
    if name in RUNS:
        config, _ = read_arguments(name, arguments)
        expected = "SupervisedFineTuning" if "_sft" in command else "ConstrainedGRPO"
        assert config["model"]["class_path"] == f"lightning_cgrpo.{expected}"


def test_python_example_runs(tmp_path, monkeypatch):
    (example,) = [block for kind, block in BLOCKS if kind == "python"]
    make_tiny_model(tmp_path / "models" / "tiny-qwen2")
    records = [{"prompt": f"Say {word}.", "wanted": word} for word in ("yes", "no", "maybe") for _ in range(4)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n", encoding="utf-8")
    (tmp_path / "example.py").write_text(example, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with forked(run_script, Path("example.py"), output=tmp_path / "output.txt") as process:
        process.join(120)
    output = (tmp_path / "output.txt").read_text()
    assert process.exitcode == 0 and "`max_steps=3` reached" in output, output


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)h][^)]*)\)", README))
def test_links_lead_somewhere(link):
    assert (ROOT / link).is_file()


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/**/*.md")), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_pages_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#][^)\s]*)\)", re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL))
    missing = [link for link in links if "://" not in link and not (page.parent / link.partition("#")[0]).exists()]
    assert not missing
    assert "@@" not in text
