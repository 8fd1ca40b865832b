"""The dual: from counts of violations to the multipliers' next step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from lightning_cgrpo.core.distributed import all_sum, rank_zero_warn
from lightning_cgrpo.core.errors import UserError, expect_instances
from lightning_cgrpo.core.rollout import Signals
from lightning_cgrpo.multipliers.controller import Controller
from lightning_cgrpo.multipliers.damped_ascent import DampedAscent
from lightning_cgrpo.multipliers.guards import StallDetector
from lightning_cgrpo.multipliers.targets import Targets
from lightning_cgrpo.multipliers.units import Units, observed_answers, within_groups
from lightning_cgrpo.objective.behavior_rate import BehaviorRate
from lightning_cgrpo.objective.chance import look_targets
from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.objective.evaluation import Evaluation
from lightning_cgrpo.objective.look import Look
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.verdicts.clustered import ClusteredRate


class Dual:
    """Moves the multipliers of an objective's K constraints, from the counts of each update.

        count     violations and opportunities of all answers of all processes
        measure   p_k = violations / opportunities
        compare   v_k = (p_k - target_k) / unit_k
        control   the controller moves the multipliers by v

    The reward takes no part. A constraint on some of the answers pools counts over updates until there
    are enough.

    Args:
        controller: by default `DampedAscent`.
        stall: finds likely infeasible constraints; by default with its own defaults.
    """

    def __init__(self, controller: Controller | None = None, stall: StallDetector | None = None) -> None:
        self.controller: Controller = DampedAscent() if controller is None else controller
        expect_instances(controller=controller)
        self.stall = StallDetector() if stall is None else stall
        self.constraints: dict[str, Constraint] = {}
        self.look: Look | None = None

    def declare(self, objective: Objective) -> None:
        """Allocate the state for an objective's constraints; a second call with the same constraints keeps it.

        Raises:
            UserError: no constraint to enforce.
        """
        if not objective.constrained:
            raise UserError(
                "Expected the objective to have a constraint with role: constrain, but it has none, try adding one, or "
                "training without multipliers, which is plain GRPO."
            )
        if self.constraints != objective.constrained or self.look != objective.look:
            self.constraints = objective.constrained
            self.look = objective.look
            rare = [constraint.of_some for constraint in self.constraints.values()]
            self.rates = BehaviorRate(rare, sync_on_compute=False)
            self.targets = Targets(list(self.constraints.values()), look_targets(objective))
            self.units = Units(objective, self.controller.standard_units)
        self.controller.setup(len(self.constraints))
        self.stall.setup(len(self.constraints))

    # ------------------------------------------------------------------ a step

    def count(self, objective: Objective, violations: Tensor, opportunities: Tensor, measured: Signals) -> None:
        """Add an update's counts ``[K]``, summed over the processes, so that any process's checkpoint holds them.

        Args:
            measured: the signals that were counted, for the number of answers and the units of means.
        """
        answers = observed_answers(objective, measured, self.constraints)
        rows = [torch.stack([violations, opportunities, answers.to(violations)])]  # [3, K]
        if self.units.spreads:
            # The unit of a mean is the deviation of answers within their groups.
            rows.append(within_groups(objective, measured, self.constraints).to(violations))  # [2, K]
        # One sum over the processes, and one wait of the host for the device.
        violations, opportunities, answers, *deviations = all_sum(torch.cat(rows)).cpu()
        self.rates.update(violations, opportunities)
        # Without opportunities, such as in a critic's warm-up, nothing was measured.
        self.targets.answers = self.targets.answers + torch.where(opportunities > 0, answers, 0)
        if deviations:
            squares, freedom = deviations
            self.units.deviation.update(squares, freedom)

    def measure(self) -> Tensor:
        """Rates of violation (or means) ``[K]`` since the last dual step, NaN where not observed."""
        violations, opportunities = self.rates.take()
        return violations / opportunities

    def compare(self, rates: Tensor) -> Tensor:
        """Violations ``[K]``: how far the rates exceed their targets, in each constraint's unit."""
        return self.units.clamped((rates - self.targets.targets) / self.unit)

    @property
    def unit(self) -> Tensor:
        """The unit ``[K]`` of each constraint's violation now.

        On its way to a declared threshold a rate keeps at least the declared one's unit, because that of a threshold
        near 1 is near 0, so any rate would be far from it. A held constraint has at least the unit at what is held,
        because in the smaller unit of an infeasible threshold noise alone would be a large violation.
        """
        targets = self.targets
        units = torch.maximum(self.units.at(targets.in_force), self.units.at(targets.declared))
        held = torch.where(targets.held.isfinite(), targets.held, targets.declared)
        return torch.maximum(units, self.units.at(held))

    @property
    def held(self) -> dict[str, float]:
        """Rates at which stalled constraints are held, in the user's orientation, by name."""
        held: dict[str, float] = {}
        for (name, constraint), rate in zip(self.constraints.items(), self.targets.held.tolist(), strict=True):
            if math.isfinite(rate):
                held[name] = constraint.bound.shown(rate)
        return held

    def note_validation(self, rates: Mapping[str, ClusteredRate]) -> None:
        """Note how many independent answers a validation is worth, by constraint."""
        sizes: list[float] = []
        for name, constraint in self.constraints.items():
            rate = rates.get(name)
            if rate is None:
                sizes.append(math.inf)
            elif constraint.bound.of_mean:
                sizes.append(rate.prompts)
            else:
                # With less than one violation expected at the threshold, a validation decides nothing.
                expected_violations = rate.effective * constraint.bound.target
                sizes.append(rate.effective if expected_violations >= 1 else math.inf)
        self.targets.validated = torch.tensor(sizes, dtype=torch.float64)

    def note_look(self, objective: Objective, evaluation: Evaluation) -> None:
        """Set the targets of a declared look by what a validation tells of its tests."""
        if objective.look is not None:
            self.targets.look = look_targets(objective, evaluation)

    def enforce(self, update: int) -> None:
        """Set the targets of an update, with the controller's margin."""
        self.targets.enforce(update, self.controller.margin, self.units.deviations)

    def advance(self, update: int) -> None:
        """`enforce`, after a step: thresholds follow their schedules, and the margin its samples."""
        self.targets.advance(update, self.controller.margin, self.units.deviations)

    def control(self, rates: Tensor, violations: Tensor) -> None:
        """Move the controller's multipliers by the violations ``[K]``; NaN, where not observed, moves nothing."""
        observed = ~violations.isnan()
        self.detect_stall(rates, observed, self.controller.saturation)
        self.controller.step(violations, observed)

    def detect_stall(self, rates: Tensor, observed: Tensor, saturation: Tensor) -> None:
        """Warn of a constraint that has all its weight and does not get better, and hold it at what it reached."""
        units = self.unit
        # Without the margin, whose fall would look like progress.
        excess = (rates - self.targets.aimed) / units
        # A rate that follows a moving threshold would look like no progress.
        stalled = self.stall.update(saturation, excess, observed & ~self.targets.moved)
        self.targets.moved = torch.zeros_like(self.targets.moved)
        # Let go of held constraints that are met now.
        for met in self.targets.release(rates, observed):
            self.controller.release(met)
        if stalled is not None:
            name = list(self.constraints)[stalled]
            # The rates behind the mean violations that the detector measured, and at least the units at those rates.
            reached = self.targets.aimed + self.stall.reached * units
            reached_units = torch.maximum(units, self.units.at(reached))
            rate = float(reached[stalled])
            if self.controller.hold(stalled):
                self.targets.hold(stalled, rate, float(reached_units[stalled]))
            rank_zero_warn(self.targets.stall_warning(stalled, name, self.stall, rate))

    # ------------------------------------------------------------------ checkpoints

    @property
    def _stateful_parts(self) -> dict[str, nn.Module]:
        """The parts with a state, by their key in checkpoints."""
        parts: dict[str, nn.Module] = {"controller": self.controller, "rates": self.rates, "stall": self.stall}
        if self.units.spreads:
            parts["spread"] = self.units.deviation
        return parts

    def state_dict(self) -> dict[str, Any]:
        """The multipliers, the pending counts and the detector of stalls."""
        state: dict[str, Any] = {
            "names": list(self.constraints),
            "controller_class": type(self.controller).__name__,
            "moved": self.targets.moved,
            "answers": self.targets.answers,
            "validated": self.targets.validated,
            "held": self.targets.held,
            "recent": self.targets.recent,
        }
        if self.targets.look is not None:
            state |= {"look": self.targets.look, "look_of": self._look_of()}
        for key, part in self._stateful_parts.items():
            state[key] = part.state_dict()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raise a `UserError` if the checkpoint has other constraints or another controller."""
        names = list(self.constraints)
        controller = type(self.controller).__name__
        if state_dict["names"] != names or state_dict["controller_class"] != controller:
            raise UserError(
                f"Expected a checkpoint with multipliers of {names} by {controller}, but got {state_dict['names']} by "
                f"{state_dict['controller_class']}, try the configuration that it was trained with."
            )
        for key, part in self._stateful_parts.items():
            state = state_dict.get(key, {})
            differing_keys = state.keys() ^ part.state_dict().keys()
            if differing_keys:
                raise UserError(
                    f"Expected the state of this version's {type(part).__name__}, but the checkpoint has another "
                    f"({', '.join(sorted(differing_keys))}), because its version moved multipliers otherwise, try that "
                    "version of lightning_cgrpo, or a new run from the exported policy."
                )
            part.load_state_dict(state)
        # An older checkpoint may lack a state of the targets, which then stays.
        for name in ("moved", "answers", "validated", "held", "recent"):
            if name in state_dict:
                setattr(self.targets, name, state_dict[name])
        # Targets of another look, or of other thresholds, are not those of this run.
        if self.targets.look is not None and state_dict.get("look_of") == self._look_of():
            self.targets.look = state_dict["look"]

    def _look_of(self) -> dict[str, Any]:
        """Settings on which the targets of a declared look depend, beside a validation."""
        bounds = [constraint.bound for constraint in self.constraints.values()]
        thresholds = [(bound.threshold, bound.range) for bound in bounds]
        look = None if self.look is None else asdict(self.look)
        return {"look": look, "thresholds": thresholds}
