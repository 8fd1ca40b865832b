"""Constraints on subsets of the prompts: a multiplier for each value of a column, beside the average."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.callbacks.evaluation_tables import objective_table
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signal
from lightning_cgrpo.multipliers import ProjectedAscent
from lightning_cgrpo.objective.evaluation import RunningSums
from lightning_cgrpo.objective.measurement import prompt_sums
from lightning_cgrpo.objective.objective import Constraint, Objective, ObjectiveError
from lightning_cgrpo.objective.subsets import check_columns
from tests.dual_run import DualRun

BY = Constraint(at_least=0.8, by={"steps": [1, 2, 3]})


def test_a_multiplier_for_each_value_and_a_monitored_average() -> None:
    objective = Objective("goal", {"right": BY, "other": Constraint(at_most=0.1, signal="right")})
    names = ["right/steps=1", "right/steps=2", "right/steps=3"]
    assert list(objective.constraints) == ["right", *names, "other"]
    assert list(objective.constrained) == [*names, "other"]
    average = objective.constraints["right"]
    assert average.role == "monitor" and average.bound.threshold == 0.8
    assert objective.signal_names == ["goal", "right"]


def test_the_average_has_no_aim() -> None:
    """Checkpoints rank policies by a copy of the objective, which is checked again."""
    objective = Objective("goal", {"right": Constraint(at_least=0.75, aim=0.8, by={"steps": [1, 2]})})
    assert [constraint.aim for constraint in replace(objective, look=None).constraints.values()] == [None, 0.8, 0.8]


class TestData:
    ROWS = SimpleNamespace(rows=[{"steps": 1, "prompt": "a"}, {"steps": 2, "prompt": "b", "late": 1}])

    class Generated:
        rows = None

        def __len__(self) -> int:
            return 9

        def groups(self, index: torch.Tensor) -> PromptGroups:
            assert index.tolist() == list(range(9))  # no more than there are
            return PromptGroups(index, {"steps": (1 + index % 2).tolist()})

    @pytest.mark.parametrize("source", [ROWS, Generated()])
    def test_unknown_columns_and_empty_subsets(self, source: Any) -> None:
        def check(where: dict[str, Any]) -> None:
            check_columns({"c": Constraint(at_most=0.1, where=where)}, lambda split: source)

        check({"steps": 2})
        if source is self.ROWS:
            check({"late": 1})  # a column of some rows
        with pytest.raises(ObjectiveError, match="Did you mean 'steps'"):
            check({"step": 2})
        with pytest.raises(ObjectiveError, match="but no steps is 3; there are 1, 2"):
            check({"steps": 3})

    def test_validation_prompts_need_the_column(self) -> None:
        sources = {"train": self.ROWS, "val": SimpleNamespace(rows=[{"prompt": "c"}])}
        with pytest.raises(ObjectiveError, match="column of the val data"):
            check_columns({"c": Constraint(at_most=0.1, where={"steps": 1})}, sources.__getitem__)

    @pytest.mark.parametrize("missing", ["val", "train"])
    def test_validation_alone_may_be_missing(self, missing: str) -> None:
        def source(split: str) -> Any:
            if split == missing:
                raise UserError("no such prompts")
            return self.ROWS

        with nullcontext() if missing == "val" else pytest.raises(UserError, match="no such prompts"):
            check_columns({"c": Constraint(at_most=0.1, where={"steps": 1})}, source)

    def test_without_subsets_no_data_is_read(self) -> None:
        check_columns({"c": Constraint(at_most=0.1)}, lambda split: pytest.fail("was read"))


def test_counts_that_a_subset_pools_are_in_the_checkpoint() -> None:
    objective = Objective("goal", {"a": Constraint(at_most=0.1), "b": Constraint(at_most=0.1, where={"x": 1})})
    one, other = (DualRun(LagrangianCallback(ProjectedAscent()), objective).start() for _ in range(2))
    for _ in range(2):
        one.update([12, 12], [12, 12])
    other.callback.load_state_dict(one.callback.state_dict())
    assert one.update([12, 12], [12, 12]) == other.update([12, 12], [12, 12])


def test_the_table_has_the_worst_subset_first() -> None:
    objective = Objective("goal", {"right": BY})
    right = Signal(torch.tensor([[1.0, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 0]]))
    asked = PromptGroups(torch.arange(3), {"steps": [1, 2, 3]})
    mask = torch.ones(3, 4, 2, dtype=torch.bool)
    sums, made = RunningSums(), objective.made({"goal": right, "right": right}, asked)
    sums.add(prompt_sums(objective, made, Rollouts(mask.long(), mask, {})), asked)
    table = objective_table(objective, {"test": sums.evaluation(objective)}, "Test")
    names = [str(cell) for cell in table.columns[0].cells]
    assert [name for name in names if "right" in name] == ["right", *(f"right/steps={number}" for number in (2, 3, 1))]
