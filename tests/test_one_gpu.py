"""The lines of docs/one_gpu.md follow from the page's formulas and the settings of ``configs/paper/``."""

import re
from pathlib import Path

import pytest
import yaml

from lightning_cgrpo.settings.configuration import PACKAGED
from tests.bases import base_of

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "one_gpu.md").read_text()
SIZES = {
    # parameters, layers, width, heads of keys, size of a head, vocabulary
    "1.5b": (1_543_714_304, 28, 1536, 2, 128, 151_936),
    "3b": (3_085_938_688, 36, 2048, 2, 128, 151_936),
    "7b": (7_615_616_512, 28, 3584, 4, 128, 152_064),
    "vl_3b": (3_754_622_976, 36, 2048, 2, 128, 151_936),
}
"""The released models, by the end of a configuration's name."""
MEASURED = 0.19e6 / (28 * 1536)
"""Bytes of activations per token, layer and number of a layer's width, with gradient checkpointing."""


def lines():
    """The table's rows of reinforcement learning without a critic: configuration, GPUs, cells by column."""
    table = PAGE.partition("## The shipped configurations")[2]
    columns = ("weights", "moments", "reference", "critic", "gradients", "cache", "logits", "rollout", "training")
    name = None
    for row in re.findall(r"^\| (.*) \|$", table, re.M)[1:]:
        first, _, gpus, *cells = (cell.strip() for cell in row.split("|"))
        name = first.strip("`") if first else name
        if re.fullmatch(r".*(1\.5b|[37]b)\.yaml", name):
            by_column = dict(zip((*columns, "activations"), cells, strict=True))
            yield pytest.param(name, int(gpus), by_column, id=f"{name}-{gpus}")


def settings(name):
    """G, C, P, prompts of an update, answers generated at once, answers of a pass."""
    config = yaml.safe_load((ROOT / "configs" / "paper" / name).read_text())
    if "base" in config:
        config = yaml.safe_load((ROOT / "configs" / "paper" / config["base"]).read_text())
    model = config["model"]["init_args"]
    sampler = model["sampler"]["init_args"]
    prompt = model["policy"]["init_args"]["max_prompt_tokens"]
    update = config["data"]["init_args"]["prompts_per_update"]
    passed = model["optimization"]["micro_batch_size"]
    return model["group_size"], sampler["max_new_tokens"], prompt, update, sampler["batch_size"], passed


def number(cell):
    return float(cell.strip("*"))


@pytest.mark.parametrize(("name", "gpus", "cells"), list(lines()))
def test_the_lines_follow_from_the_formulas(name, gpus, cells):
    size = next(sizes for end, sizes in reversed(SIZES.items()) if name.endswith(f"_{end}.yaml"))
    parameters, layers, width, heads, head, vocabulary = size
    group, answer, prompt, update, batch, passed = settings(name)
    at_once = min(update // gpus, batch // group)
    expected = {
        "weights": 4 * parameters / gpus,
        "moments": 8 * parameters / gpus,
        "reference": 4 * parameters / gpus,
        "gradients": 4 * parameters / gpus,
        "cache": 2 * layers * heads * head * 2 * at_once * (prompt + group * (answer - 1)),
        "activations": MEASURED * layers * width * (prompt + passed * answer),
    }
    for column, size_in_bytes in expected.items():
        assert number(cells[column]) == pytest.approx(size_in_bytes / 1e9, rel=0.02), column
    sampled, trained = map(float, cells["logits"].split(", "))
    assert sampled == pytest.approx(24 * at_once * group * vocabulary / 1e9, abs=0.005)
    assert trained == pytest.approx(3 * 2**28 / 1e9, abs=0.01)
    standing = 16 * parameters / gpus / 1e9
    gathered = 2 * parameters / 1e9 if gpus > 1 else 0
    assert number(cells["rollout"]) == pytest.approx(standing + gathered + number(cells["cache"]) + sampled, rel=0.01)
    if gpus == 1:
        assert number(cells["training"]) == pytest.approx(standing * 20 / 16 + trained, rel=0.01)


def test_every_configuration_has_a_line():
    """One that goes on top of another may have a sentence instead."""
    table = PAGE.partition("## The shipped configurations")[2]
    for file in (PACKAGED / "paper").glob("*.yaml"):
        assert f"| `{file.name}`" in table or (base_of(file) is not None and f"`{file.name}`" in table)
