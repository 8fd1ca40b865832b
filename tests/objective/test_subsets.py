"""Constraints on subsets of the prompts: a multiplier for each value of a column, beside the average."""

from contextlib import nullcontext
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


def prompts(*steps: Any) -> PromptGroups:
    return PromptGroups(torch.arange(len(steps)), {"steps": list(steps)})


def signals(*rows: list[int]) -> dict[str, Signal]:
    value = torch.tensor(rows, dtype=torch.float32)
    return {"goal": Signal(value), "right": Signal(value)}


class TestExpansion:
    def test_a_multiplier_for_each_value_and_a_monitored_average(self) -> None:
        objective = Objective("goal", {"right": BY, "other": Constraint(at_most=0.1, signal="right")})
        names = ["right/steps=1", "right/steps=2", "right/steps=3"]
        assert list(objective.constraints) == ["right", *names, "other"]
        assert list(objective.constrained) == [*names, "other"]
        average = objective.constraints["right"]
        assert average.role == "monitor" and average.bound.threshold == 0.8
        assert objective.signal_names == ["goal", "right"]


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


class TestPooling:
    def started(self) -> DualRun:
        objective = Objective("goal", {"a": Constraint(at_most=0.1), "b": Constraint(at_most=0.1, where={"x": 1})})
        return DualRun(LagrangianCallback(ProjectedAscent()), objective).start()

    def update(self, run: DualRun, answers: float) -> list[float]:
        run.update([answers, answers], [answers, answers])
        return run.callback.controller.multipliers.tolist()

    def test_pending_counts_are_in_the_checkpoint(self) -> None:
        one, other = self.started(), self.started()
        for _ in range(2):
            self.update(one, 12)
        other.callback.load_state_dict(one.callback.state_dict())
        assert self.update(one, 12) == self.update(other, 12)


def test_the_table_has_the_worst_subset_first() -> None:
    objective = Objective("goal", {"right": BY})
    rows = signals([1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 0])
    asked = prompts(1, 2, 3)
    mask = torch.ones(3, 4, 2, dtype=torch.bool)
    rollouts = Rollouts(torch.zeros(3, 4, 2, dtype=torch.int64), mask, {})
    sums = RunningSums()
    sums.add(prompt_sums(objective, objective.made(rows, asked), rollouts), asked)
    table = objective_table(objective, {"test": sums.evaluation(objective)}, "Test")
    names = [str(cell) for cell in table.columns[0].cells]
    assert [name for name in names if name.startswith("right")] == [
        "right",
        "right/steps=2",
        "right/steps=3",
        "right/steps=1",
    ]
