"""The documentation site builds without a warning, and has all pages, names and pictures."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import lightning_cgrpo

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_there_and_found_by_search(site):
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").glob("*.md")}
    assert [page for page in pages if not (site / page).with_suffix(".html").is_file()] == []
    found = {entry["location"] for entry in json.loads((site / "search" / "search_index.json").read_text())["docs"]}
    assert {Path(page).with_suffix(".html").name for page in pages} <= found
    assert not any(location.endswith(".json.html") for location in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "location"), [("OOM", "one_gpu.html#out-of-memory-oom"), ("lr", "did_it_work.html#learning-rate")]
)
def test_search_finds_words_beside_punctuation(site, word, location):
    index = json.loads((site / "search" / "search_index.json").read_text())
    texts = {entry["location"]: entry["title"] + " " + entry["text"] for entry in index["docs"]}
    assert word in re.split(index["config"]["separator"], re.sub("<[^>]*>", " ", texts[location]))


def test_lines_break_where_readers_would():
    on_page_content = runpy.run_path(str(ROOT / "docs" / "hooks.py"))["on_page_content"]
    cell, option = "<td><code>grpo/own_signals.py</code> 0.01</td>", "<code>fit --trainer.max_steps=3</code>"
    broken = cell.replace("/own_", "/<wbr>own_<wbr>").replace(".py", ".<wbr>py")
    assert on_page_content(cell, None, None, None) == broken
    assert '<span class="option">--trainer</span>' in on_page_content(option, None, None, None)
    equation = on_page_content(r'<div class="arithmatex">\[x^2\]</div>', None, None, None)
    assert equation.startswith('<div class="equation"><math')


@pytest.mark.slow
def test_the_reference_has_every_exported_name(site):
    pages = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    named = {
        anchor.rpartition(".")[2]
        for anchor in re.findall(r'<h2 id="((?:lightning_cgrpo|driving_scenes|navsim_score)\.[\w.]+)"', pages)
    }
    assert set(lightning_cgrpo._EXPORTS) - named == set()
    assert {"LagrangianCallback", "PromptDataModule", "DampedAscent", "Scorer", "prompts_needed"} <= named


@pytest.mark.slow
def test_equations_are_drawn_by_the_browser(site):
    for page in ("method", "derivations", "losses", "objectives"):
        text = (site / f"{page}.html").read_text(encoding="utf-8")
        assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in text and "$$" not in text


@pytest.mark.slow
def test_the_site_loads_nothing_from_other_servers(site):
    text = (site / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?://', text)
