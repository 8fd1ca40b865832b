"""The dual of docs/callbacks.md in training: its weights follow the rates of the update by hand."""

import re
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback

from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.objective.objective import Constraint
from tests.grids import grid_module
from tests.quiet import quiet_trainer

PAGE = (Path(__file__).parents[2] / "docs/callbacks.md").read_text(encoding="utf-8")
(CODE,) = re.findall(r'```python title="my_weights.py"\n(.*?)```', PAGE, re.DOTALL)


class Watch(Callback):
    """The rates of each update, and the weights before and after it."""

    def __init__(self) -> None:
        self.rates: list[list[float]] = []
        self.weights: list[list[float]] = []

    def on_train_start(self, trainer, pl_module) -> None:
        self.weights.append(pl_module.weights.tolist())

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.rates.append((outputs["violations"] / outputs["opportunities"]).tolist())
        self.weights.append(pl_module.weights.tolist())


def test_the_dual_of_the_page() -> None:
    names: dict = {}
    exec(CODE, names)
    constraints = {
        "lava": Constraint(at_most=0.05),
        "seen": Constraint(role="monitor", signal="battery"),
        "arrives": Constraint(signal="goal", at_least=0.9),
    }
    module = grid_module(constraints)
    watch = Watch()
    trainer = quiet_trainer(names["DualAscent"](), watch, max_steps=4)
    trainer.fit(module, GridworldDataModule(2))
    assert watch.weights[0] == pytest.approx([1 / 3] * 3)
    lava = arrives = 1.0
    for rates, weights in zip(watch.rates, watch.weights[1:], strict=True):
        lava = max(0.0, lava + 0.5 * (rates[0] - 0.05))
        arrives = max(0.0, arrives + 0.5 * (rates[1] - 0.1))
        total = 1 + lava + arrives
        assert weights == pytest.approx([1 / total, lava / total, arrives / total])
    assert len(watch.rates) == 4 and watch.rates[0][1] > 0.5, "few arrive at first"
    assert torch.tensor(watch.weights).diff(dim=0).any()

    resumed, again = names["DualAscent"](), Watch()
    resumed.load_state_dict(trainer.callbacks[0].state_dict())
    quiet_trainer(resumed, again, max_steps=1).fit(grid_module(constraints), GridworldDataModule(2))
    assert again.weights[0] == watch.weights[-1]
