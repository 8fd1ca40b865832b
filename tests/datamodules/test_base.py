"""Which prompts an update gets follows from its number alone, whatever the processes."""

import re
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.prompts import source
from lightning_cgrpo.core.prompts.source import PromptLoader, PromptSource
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.datamodules import GridworldDataModule, PromptDataModule
from lightning_cgrpo.datamodules.base import GroupDataModule
from lightning_cgrpo.objective.look import Look
from lightning_cgrpo.run.looks import Used


class Numbers(PromptSource):
    """Prompts that are their index."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def groups(self, index: torch.Tensor) -> PromptGroups:
        return PromptGroups(index, {"square": index**2})


def batches(size: int, batch_size: int, start: int = 0, **arguments) -> list[list[int]]:
    loader = PromptLoader(Numbers(size), batch_size, start=lambda: start, **arguments)
    return [groups.index.tolist() for groups in loader]


def flat(lists: list[list[int]]) -> list[int]:
    return [prompt for prompts in lists for prompt in prompts]


class TestOrder:
    def test_without_seed_as_they_come(self) -> None:
        assert batches(7, 3) == [[0, 1, 2], [3, 4, 5], [6]]
        assert batches(6, 3) == [[0, 1, 2], [3, 4, 5]]

    def test_each_pass_has_every_prompt_once_in_an_order_of_its_own(self) -> None:
        passes = [flat(batches(20, 4, start=5 * number, seed=0)) for number in range(4)]
        assert all(sorted(prompts) == list(range(20)) for prompts in passes)
        assert len({tuple(prompts) for prompts in [*passes, list(range(20))]}) == 5

    def test_the_seed_decides(self) -> None:
        assert batches(20, 4, seed=1) == batches(20, 4, seed=1) != batches(20, 4, seed=2)

    def test_drop_last_leaves_out_other_prompts_in_each_pass(self) -> None:
        passes = [batches(11, 4, start=2 * number, seed=0, drop_last=True) for number in range(3)]
        assert all([len(prompts) for prompts in lists] == [4, 4] for lists in passes)
        assert len({tuple(sorted(flat(lists))) for lists in passes}) > 1

    @pytest.mark.parametrize(
        ("size", "batch_size", "drop_last", "length"),
        [(8, 4, False, 2), (8, 4, True, 2), (9, 4, False, 3), (9, 4, True, 2), (3, 4, False, 1)],
    )
    def test_length(self, size: int, batch_size: int, drop_last: bool, length: int) -> None:
        loader = PromptLoader(Numbers(size), batch_size, drop_last=drop_last)
        assert len(loader) == len(list(loader)) == length


class TestResume:
    @pytest.mark.parametrize("start", range(12))
    def test_goes_on_where_it_stopped(self, start: int) -> None:
        """The batches from any number on are those of a run that was never stopped."""
        whole = [batch for number in range(0, 15, 5) for batch in batches(22, 4, start=number, seed=3, drop_last=True)]
        assert len(whole) == 15
        rest_of_pass = 5 - start % 5
        assert batches(22, 4, start=start, seed=3, drop_last=True) == whole[start : start + rest_of_pass]

    def test_start_is_asked_when_iteration_begins(self) -> None:
        done = [0]
        loader = PromptLoader(Numbers(6), 2, start=lambda: done[0])
        assert [groups.index.tolist() for groups in loader] == [[0, 1], [2, 3], [4, 5]]
        done[0] = 4
        assert [groups.index.tolist() for groups in loader] == [[2, 3], [4, 5]]


class TestProcesses:
    @pytest.mark.parametrize("processes", [1, 2, 3, 5])
    @pytest.mark.parametrize("seed", [None, 0])
    def test_share_every_batch_in_order(
        self, processes: int, seed: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        single = batches(22, 4, start=2, seed=seed)
        shares = []
        for rank in range(processes):
            monkeypatch.setattr(source, "world", lambda rank=rank: (rank, processes))
            shares.append(batches(22, 4, start=2, seed=seed))
        for number, batch in enumerate(single):
            parts = [share[number] for share in shares]
            assert flat(parts) == batch
            lengths = [len(part) for part in parts]
            assert max(lengths) - min(lengths) <= 1
        # Every process takes part in every batch, be it with nothing.
        assert all(len(share) == len(single) for share in shares)


class Module(GroupDataModule):
    def __init__(self, sizes: dict[str, int], **arguments) -> None:
        super().__init__(**arguments)
        self.sizes = sizes
        self.asked: list[str] = []

    def source(self, split):
        self.asked.append(split)
        return Numbers(self.sizes[split])


class TestGroupDataModule:
    SIZES = (("train", 22), ("val", 7), ("test", 5))

    def made(self, **arguments) -> Module:
        return Module(dict(self.SIZES), **{"prompts_per_update": 4, "eval_prompts": 3, "seed": 5, **arguments})

    def test_training_goes_on_after_the_updates_done(self) -> None:
        module = self.made()
        module.trainer = SimpleNamespace(global_step=7, limit_train_batches=1.0)
        got = [groups.index.tolist() for groups in module.train_dataloader()]
        assert got == batches(22, 4, start=7, seed=5, drop_last=True)
        assert len(got) == 3

    @pytest.mark.parametrize(("split", "size"), SIZES[1:])
    def test_evaluation_sees_every_prompt_in_order(self, split: str, size: int) -> None:
        module = self.made()
        module.trainer = SimpleNamespace(global_step=7, limit_train_batches=1.0)
        got = [groups.index.tolist() for groups in getattr(module, f"{split}_dataloader")()]
        assert got == batches(size, 3) and module.asked == [split]
        assert module.predict_dataloader().source.size == 5, "the test prompts"

    @pytest.mark.parametrize(("asked", "sample"), [(1, [0]), (4, [0, 5, 11, 16]), (22, range(22)), (1000, range(22))])
    def test_training_prompts_in_a_test(self, asked: int, sample: Sequence[int]) -> None:
        """Evenly spaced, under their own index, after the test prompts, which stay as they are."""
        module = self.made(test_train_prompts=asked)
        tested, trained = module.test_dataloader()
        assert [groups.index.tolist() for groups in tested] == batches(5, 3)
        assert flat([groups.index.tolist() for groups in trained]) == list(sample)
        assert max(len(groups) for groups in trained) <= 3 and len(trained) == -(-len(sample) // 3)
        assert module.asked == ["test", "train"]
        assert len(module.val_dataloader()) == 3, "no other evaluation has them"


def test_certification_takes_prompts_that_no_test_has_used():
    """New layouts of an endless source, after those of the test."""
    data = GridworldDataModule(test_prompts=5, seed=0)
    found = data.certification(7)
    source, words = found.source, found.words
    assert words == "7 new prompts" and len(source) == 7
    assert source.groups(torch.arange(7)).index.tolist() == list(range(5, 12))
    drawn = source.groups(torch.arange(7)).columns["lava"]
    for split in ("train", "val", "test"):
        other = data.source(split).groups(torch.arange(5)).columns["lava"]
        assert not (drawn[:, None] == other[None]).all(-1).any()
    assert len(data.certification(None).source) == 5


@pytest.mark.parametrize(("test_prompts", "first"), [(1, 105), (5, 105), (200, 200)])
def test_no_look_sees_anothers_new_prompts_whatever_the_number_of_test_prompts(test_prompts, first):
    found = GridworldDataModule(test_prompts=test_prompts, seed=0).certification(7, Used(new_until=105))
    assert found.source.groups(torch.arange(7)).index.tolist() == list(range(first, first + 7))
    assert found.new_until == first + 7


def test_a_declared_look_at_more_prompts_than_the_test_has_is_refused_before_training(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"prompt": "{number} + 1"}}\n' for number in range(5)))

    def begun(data, prompts):
        objective = SimpleNamespace(look=Look(prompts))
        data.trainer = SimpleNamespace(lightning_module=SimpleNamespace(objective=objective), limit_val_batches=0)
        data.setup("fit")

    message = "Expected at least the 6 test prompts of the declared look, but got 5, try model.objective.look.prompts=5"
    with pytest.raises(UserError, match=re.escape(message)):
        begun(PromptDataModule(str(rows), test_path=str(rows), prompts_per_update=2), 6)
    begun(PromptDataModule(str(rows), test_path=str(rows), prompts_per_update=2), 5)
    begun(PromptDataModule(str(rows), prompts_per_update=2), 6)  # `certify` names the test prompts.
    begun(GridworldDataModule(test_prompts=5, seed=0), 6)  # Worlds have no end.


def test_an_override_that_nothing_calls_any_more_is_refused():
    with pytest.raises(UserError, match="Expected Own to tell prompts that splits share by overlapping_sources"):
        type("Own", (GroupDataModule,), {"seen_prompts": lambda self, source: set()})
