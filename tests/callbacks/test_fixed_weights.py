"""The callback that keeps the weights that the user gives."""

from types import SimpleNamespace
from typing import Any

import torch

from lightning_cgrpo.callbacks import FixedWeights
from lightning_cgrpo.objective.objective import Constraint, Objective

OBJECTIVE = Objective(
    "goal", {"lava": Constraint(at_most=0.1), "seen": Constraint(role="monitor"), "safe": Constraint(at_least=0.7)}
)


class TestFixedWeights:
    def started(self, weights: dict[str, float] | None) -> list[float]:
        callback = FixedWeights(weights)
        module: Any = SimpleNamespace(
            objective=OBJECTIVE, has_weight_setter=False, weights=torch.full((3,), 9.0, dtype=torch.float64)
        )
        callback.setup(SimpleNamespace(callbacks=[callback]), module, "fit")
        callback.on_train_start(SimpleNamespace(), module)
        assert module.has_weight_setter
        values: list[float] = module.weights.tolist()
        return values

    def test_are_taken_as_they_are(self) -> None:
        assert self.started({"safe": 0.1, "reward": 3.0, "lava": 7.0}) == [3.0, 7.0, 0.1]
        assert self.started({"safe": 0.1, "lava": 0}) == [1.0, 0.0, 0.1]
        assert self.started({"reward": 0.0, "lava": 1.0, "safe": 0}) == [0.0, 1.0, 0.0]
