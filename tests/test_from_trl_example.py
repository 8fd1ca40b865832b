"""The port of a TRL script runs, the page shows it as it is, and says something of every option of TRL's."""

import dataclasses
import importlib.util
import inspect
import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import lightning_cgrpo
from lightning_cgrpo.datamodules import PromptDataModule
from lightning_cgrpo.policies.tiny.text import make_tiny_model

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "from_trl.py"
PAGE = (ROOT / "docs" / "coming_from_trl.md").read_text(encoding="utf-8")


@pytest.fixture
def example(folder):
    spec = importlib.util.spec_from_file_location("from_trl", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    make_tiny_model(folder / "model", hidden_size=16)
    records = [{"prompt": f"Say {word}.", "wanted": word} for word in ("yes", "no") for _ in range(4)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n", encoding="utf-8")
    return module


@pytest.mark.parametrize("which", ["port", "constrained"])
def test_the_port_runs(example, which):
    trainer = example.main("model", "prompts.jsonl", which, "2")
    assert trainer.global_step == 2
    weights = trainer.lightning_module.weights.tolist()
    assert weights == [1.0] if which == "port" else 0 < weights[0] < weights[1] < 1, "nobody says it yet"


@pytest.mark.slow
def test_the_original_runs(example):
    """Two updates are four of TRL's steps, as the page says."""
    assert example.main("model", "prompts.jsonl", "trl", "2").state.global_step == 4


def test_the_page_shows_the_example():
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    lines = {line.strip() for line in EXAMPLE.read_text(encoding="utf-8").splitlines()}
    assert [line for block in blocks for line in block.splitlines() if line.strip() not in lines] == []


def test_the_page_names_every_option():
    import trl

    named = re.findall(r"`([\w*]+)`", PAGE)
    options = {field.name for field in dataclasses.fields(trl.GRPOConfig)}
    arguments = set(inspect.signature(trl.GRPOTrainer.__init__).parameters) - {"self"}
    unnamed = [name for name in options | arguments if not any(fnmatchcase(name, pattern) for pattern in named)]
    assert sorted(unnamed) == []


def test_what_the_page_offers_exists():
    owners = {
        "module": "ConstrainedGRPO",
        "optimization": "Optimization",
        "policy": "CausalLMPolicy",
        "sampler": "GenerationSampler",
        "data": "PromptDataModule",
    }
    found = set(re.findall(r"`(module|optimization|policy|sampler|data)\.(\w+)", PAGE))
    assert len(found) > 25
    for owner, argument in found:
        kind = PromptDataModule if owner == "data" else getattr(lightning_cgrpo, owners[owner])
        takes = {name for base in kind.__mro__ for name in inspect.signature(base.__init__).parameters}
        assert argument in takes, f"{owner}.{argument}"
