"""The dual of a training run, alone: the callback with counts given to it, and controllers that tell what they see."""

import io
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.core.rollout import Signal
from lightning_cgrpo.multipliers import Controller
from lightning_cgrpo.objective.evaluation import Evaluation
from lightning_cgrpo.objective.objective import Constraint, Objective
from lightning_cgrpo.objective.verdicts.clustered import ClusteredRate

OBJECTIVE = Objective(
    "goal",
    {
        "lava": Constraint(at_most=0.1),
        "seen": Constraint(role="monitor", signal="battery"),
        "safe": Constraint(at_least=0.7),
    },
)
THRESHOLDS = [0.1, 0.3]


COUNTS = [([3, 2], [10, 4]), ([0, 1], [7, 9]), ([9, 0], [10, 1]), ([1, 5], [12, 6]), ([2, 2], [20, 4])]


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class Frozen(Controller):
    """Does not move."""

    def __init__(self, *weights: float) -> None:
        super().__init__()
        self.fixed_weights = weights

    @property
    def weights(self) -> Tensor:
        return self.fixed

    def _allocate(self, size: int) -> None:
        self.register_buffer("fixed", numbers(*self.fixed_weights))

    def _update(self, violations: Tensor, observed: Tensor) -> None:
        pass


class Recording(Frozen):
    """Remembers what it was told."""

    def _allocate(self, size: int) -> None:
        super()._allocate(size)
        self.told: list[tuple[list[float], list[bool]]] = []

    def _update(self, violations: Tensor, observed: Tensor) -> None:
        self.told.append((violations.tolist(), observed.tolist()))


class DualRun:
    """As much of a training run as the callback touches. Updates have counts, and nothing else: no reward."""

    def __init__(self, callback: LagrangianCallback, objective: Objective = OBJECTIVE, done: int = 0) -> None:
        self.callback = callback
        self.logged: list[tuple[dict[str, float], int]] = []
        logger = SimpleNamespace(log_metrics=lambda metrics, step: self.logged.append((metrics, step)))
        weights = torch.zeros(len(objective.weight_names), dtype=torch.float64)
        self.module = SimpleNamespace(
            objective=objective, weights=weights, device=torch.device("cpu"), loggers=[logger], thresholds={}
        )
        steps = {"global_step": done, "log_every_n_steps": 1, "estimated_stepping_batches": 1_000}
        self.trainer = SimpleNamespace(**steps, callbacks=[], sanity_checking=False, state=SimpleNamespace(fn="fit"))
        callback.setup(self.trainer, self.module, "fit")

    def start(self, state: dict[str, Any] | None = None) -> "DualRun":
        if state is not None:
            self.callback.load_state_dict(state)
        self.callback.on_train_start(self.trainer, self.module)
        return self

    def update(
        self, violations: list[float], opportunities: list[float], measured: dict[str, Signal] | None = None
    ) -> list[float]:
        """The weights after an update with these counts; by default, each opportunity is of another answer."""
        self.trainer.global_step += 1
        if measured is None:
            names = self.callback.constraints
            answers = zip(names, opportunities, strict=True)
            measured = {name: Signal(torch.zeros(1, int(count))) for name, count in answers}
        counts = {"violations": numbers(*violations), "opportunities": numbers(*opportunities)}
        outputs = {**counts, "measured": measured}
        self.callback.on_train_batch_end(self.trainer, self.module, outputs, None, 0)
        return self.module.weights.tolist()

    def validate(self, rates: dict[str, ClusteredRate]) -> None:
        """A validation with these rates of violation."""
        self.module.evaluations = {"val": Evaluation(rates=rates)}
        self.callback.on_validation_end(self.trainer, self.module)


def run(*arguments: Any, **named: Any) -> DualRun:
    return DualRun(LagrangianCallback(*arguments, **named)).start()


def saved(callback: LagrangianCallback | Controller) -> dict[str, Any]:
    """The callback's or controller's state, through a checkpoint file as Lightning reads it."""
    file = io.BytesIO()
    torch.save(callback.state_dict(), file)
    file.seek(0)
    state: dict[str, Any] = torch.load(file, weights_only=True)
    return state


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)
