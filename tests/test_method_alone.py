"""The method without its trainer: signals in, advantages out, with torch, NumPy, SciPy and torchmetrics alone."""

import importlib
import re
import runpy
import sys
from importlib.abc import MetaPathFinder
from importlib.metadata import requires
from pathlib import Path

import pytest

from tests.forked import forked

ROOT = Path(__file__).parents[1]
NEEDED = ("torch", "numpy", "scipy", "torchmetrics")
OURS = ("lightning_cgrpo", "examples", "tests")


def closure(names):
    """Modules of distributions and of all that they require, outside of extras."""
    found, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        if name.replace("-", "_").lower() in found:
            continue
        found.add(name.replace("-", "_").lower())
        for text in requires(name) or ():
            if ";" not in text:
                waiting.append(re.match(r"[\w.-]+", text)[0])
    return found


class Refuses(MetaPathFinder):
    """Every other package looks as if it weren't installed."""

    def __init__(self):
        self.known = {*sys.stdlib_module_names, *closure(NEEDED), *OURS}

    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] not in self.known and not name.startswith("_"):
            raise ModuleNotFoundError(f"No module named {name!r}, which this test takes away", name=name)


def alone():
    """In a process of its own: nothing else is installed, and this package isn't imported yet."""
    finder = Refuses()
    for name in list(sys.modules):
        top = name.partition(".")[0]
        if top == "lightning_cgrpo" or (top not in finder.known and not top.startswith("_")):
            del sys.modules[name]
    sys.meta_path.insert(0, finder)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("lightning")
    loop = runpy.run_path(str(ROOT / "examples" / "planner_loop.py"))
    loop["train"](2)
    for name in ("multipliers", "objective.evaluation", "objective.selection", "objective.verdicts.verdict"):
        importlib.import_module(f"lightning_cgrpo.{name}")
    warn()


def warn():
    """The stall's warning, the one thing that needed Lightning."""
    import torch

    from lightning_cgrpo import ConstrainedAdvantages, Constraint, Objective
    from lightning_cgrpo.multipliers import StallDetector

    objective = Objective("speed", {"collision": Constraint(at_most=0.05)})
    advantages_of = ConstrainedAdvantages(objective, stall=StallDetector(updates=4))
    with pytest.warns(UserWarning, match="may be infeasible"):
        for _ in range(60):
            advantages_of({"speed": torch.tensor([[0.0, 1.0]]), "collision": torch.ones(1, 2)})


@pytest.mark.slow
def test_the_method_needs_no_trainer(tmp_path):
    with forked(alone, output=tmp_path / "output.txt") as process:
        process.join(60)
        assert process.exitcode == 0, (tmp_path / "output.txt").read_text()
