"""Other costs of an answer that meets a constraint's condition (`given`) than the package's, for a study of the three.

    python -m lightning_cgrpo study examples/constraints/given_study.yaml   # 25 minutes of CPU time, and the tests

The package's cost is the violation minus the batch's rate (`Constraint.component`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_cgrpo import ConstrainedGRPO
from lightning_cgrpo.core.rollout import Signal, Signals
from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.objective.objective import Components, Objective
from lightning_cgrpo.objective.subsets import key


class _OtherCost(Callback):
    objective: type[Objective]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        assert isinstance(pl_module, ConstrainedGRPO)
        declared = pl_module.objective
        arguments = {field.name: getattr(declared, field.name) for field in fields(declared) if field.init}
        pl_module.objective = self.objective(**arguments)


class _OtherObjective(Objective):
    def conditional(self, signals: Signals) -> Iterator[tuple[int, Constraint, Signal]]:
        """Each constraint with a condition: its row of the components, and its signal where the condition holds."""
        for row, (name, constraint) in enumerate(self.compared.items(), start=len(self.rewards)):
            if constraint.given is not None:
                yield row, constraint, signals[key(name, constraint)]


class OverTheThresholdObjective(_OtherObjective):
    """The cost is the violation minus the threshold."""

    def components(self, signals: Signals) -> Components:
        components = super().components(signals)
        values = components.values.clone()
        for row, constraint, signal in self.conditional(signals):
            values[row] = constraint.component(signal)
        return replace(components, values=values)


class AmongThemselvesObjective(_OtherObjective):
    """Only a group's answers that meet the condition are compared."""

    def components(self, signals: Signals) -> Components:
        components = super().components(signals)
        applicable = components.applicable.clone()
        for row, _, signal in self.conditional(signals):
            assert signal.applicable is not None
            applicable[row] = signal.applicable
        return replace(components, applicable=applicable)


class OverTheThreshold(_OtherCost):
    """Trains with `OverTheThresholdObjective`."""

    objective = OverTheThresholdObjective


class AmongThemselves(_OtherCost):
    """Trains with `AmongThemselvesObjective`."""

    objective = AmongThemselvesObjective
