"""The dual of docs/callbacks.md in training: its weights follow the rates of the update by hand."""

import re
from pathlib import Path

import pytest
import torch

from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.objective.objective import Constraint
from tests.grids import grid_module
from tests.memory import Memory
from tests.quiet import quiet_trainer

PAGE = (Path(__file__).parents[2] / "docs/callbacks.md").read_text(encoding="utf-8")
(CODE,) = re.findall(r'```python title="my_weights.py"\n(.*?)```', PAGE, re.DOTALL)


def test_the_dual_of_the_page() -> None:
    names: dict = {}
    exec(CODE, names)
    constraints = {
        "lava": Constraint(at_most=0.05),
        "seen": Constraint(role="monitor", signal="battery"),
        "arrives": Constraint(signal="goal", at_least=0.9),
    }
    module = grid_module(constraints)
    watch = Memory()
    trainer = quiet_trainer(names["DualAscent"](), watch, max_steps=4)
    trainer.fit(module, GridworldDataModule(2))
    assert watch.first_weights.tolist() == pytest.approx([1 / 3] * 3)
    lava = arrives = 1.0
    rates_of = [(outputs["violations"] / outputs["opportunities"]).tolist() for outputs in watch.outputs]
    for rates, weights in zip(rates_of, watch.weights, strict=True):
        lava = max(0.0, lava + 0.5 * (rates[0] - 0.05))
        arrives = max(0.0, arrives + 0.5 * (rates[1] - 0.1))
        total = 1 + lava + arrives
        assert weights.tolist() == pytest.approx([1 / total, lava / total, arrives / total])
    assert len(rates_of) == 4 and rates_of[0][1] > 0.5, "few arrive at first"
    assert torch.stack(watch.weights).diff(dim=0).any()

    resumed, again = names["DualAscent"](), Memory()
    resumed.load_state_dict(trainer.callbacks[0].state_dict())
    quiet_trainer(resumed, again, max_steps=1).fit(grid_module(constraints), GridworldDataModule(2))
    assert torch.equal(again.first_weights, watch.weights[-1])
