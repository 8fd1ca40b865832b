"""Groups that teach nothing are drawn again; what is measured of the policy stays what its first draw says."""

import pytest
import torch

from lightning_cgrpo import ConstrainedGRPO, Constraint, Objective, Optimization, ScalarizedAdvantages
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.core.randomness import Stream
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signal
from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.modules.dynamic_sampling import chosen_prompts, redraw, varying_groups, with_full_mask, with_groups
from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.objective.group_statistics import group_statistics
from lightning_cgrpo.tasks.gridworld import GridworldTask
from tests.grids import grid_module
from tests.memory import Memory
from tests.quiet import quiet_trainer

CONSTRAINTS = {"lava": Constraint(at_most=0.01)}
OBJECTIVE = Objective("goal", CONSTRAINTS)


def drawn(groups, steps, number, size=2):
    """Rollouts full of one number, of which some is not of steps."""
    mask = torch.ones(groups, size, steps, dtype=torch.bool)
    return Rollouts(
        actions=torch.full(mask.shape, number),
        mask=mask,
        inputs={"observations": torch.full((*mask.shape, 3), float(number)), "prompt_ids": torch.zeros(groups, 7)},
        log_probs=torch.full(mask.shape, -float(number)),
        info={
            "text": [[str(number)] * size for _ in range(groups)],
            "truncated": torch.full(mask.shape[:2], bool(number)),
            "lava": torch.full(mask.shape, number),
        },
    )


@pytest.mark.parametrize("steps", [3, 5, 8])
def test_chosen_groups_are_replaced_whatever_their_length(steps):
    first, others = drawn(4, 5, 0), drawn(3, steps, 1)
    others.actions[2] = 2
    got = with_groups(first, torch.tensor([3, 1]), others, torch.tensor([2, 0]))
    longest = max(steps, 5)
    assert got.mask.shape == got.log_probs.shape == got.info["lava"].shape == (4, 2, longest)
    assert got.inputs["observations"].shape == (4, 2, longest, 3)
    assert got.mask.sum(-1).tolist() == [[5, 5], [steps, steps], [5, 5], [steps, steps]]
    assert got.actions.amax((1, 2)).tolist() == [0, 1, 0, 2] and not got.actions[~got.mask].any()
    assert got.inputs["observations"].amax((1, 2, 3)).tolist() == got.info["lava"].amax((1, 2)).tolist() == [0, 1, 0, 1]
    assert got.info["text"] == [["0"] * 2, ["1"] * 2, ["0"] * 2, ["1"] * 2]
    assert got.info["truncated"].tolist() == [[False] * 2, [True] * 2, [False] * 2, [True] * 2]
    # What belongs to the prompts stays, and so do the rollouts that were given.
    assert torch.equal(got.inputs["prompt_ids"], first.inputs["prompt_ids"])
    assert not first.actions.any() and first.info["text"] == [["0"] * 2] * 4


def test_chosen_prompts_keep_their_columns():
    prompts = PromptGroups(torch.tensor([7, 8, 9]), {"prompt": ["a", "b", "c"], "size": torch.tensor([1, 2, 3])})
    got = chosen_prompts(prompts, torch.tensor([2, 0]))
    assert got.index.tolist() == [9, 7] and got.columns["prompt"] == ["c", "a"]
    assert got.columns["size"].tolist() == [3, 1]


def test_signals_of_which_one_draw_says_where_they_apply():
    first = {"x": Signal(torch.zeros(3, 2)), "y": Signal(torch.zeros(3, 2), count=torch.ones(3, 2))}
    where = torch.tensor([[True, False]])
    others = {"x": Signal(torch.ones(1, 2), applicable=where), "y": Signal(torch.ones(1, 2), count=torch.zeros(1, 2))}
    rows, of = torch.tensor([1]), torch.tensor([0])
    got = {name: with_groups(with_full_mask(first[name]), rows, with_full_mask(others[name]), of) for name in first}
    assert got["x"].value.tolist() == [[0, 0], [1, 1], [0, 0]] and got["y"].count.tolist() == [[1, 1], [0, 0], [1, 1]]
    assert got["x"].applicable.tolist() == [[True, True], [True, False], [True, True]]
    assert got["y"].applicable.all() and got["x"].count is None


def varies(objective, weights=None):
    """What `ConstrainedGRPO` asks of a group, with equal weights."""

    def of(signals):
        components = objective.components(signals)
        return varying_groups(
            components, torch.ones(len(components.values)) if weights is None else torch.tensor(weights)
        )

    return of


class Scripted:
    """Draws in which prompt n has a group that varies from its n-th draw on; values are the number of the draw."""

    objective = Objective("x")

    def __init__(self):
        self.calls = []

    def __call__(self, prompts, number):
        self.calls.append((prompts.index.tolist(), number))
        rollouts = drawn(len(prompts), 4, len(self.calls), 2)
        return rollouts, self.score(prompts, rollouts)

    def score(self, prompts, rollouts):
        number = rollouts.actions[..., 0].double()
        varies = prompts.index[:, None] <= number
        return {"x": Signal(number + varies * torch.tensor([0.0, 0.5]))}


def test_rounds_end_when_all_vary_or_they_are_used_up():
    for rounds, values in ((0, [0, 0, 0, 0]), (1, [0, 1, 0, 0]), (2, [0, 1, 0, 2]), (9, [0, 1, 5, 2])):
        draw, prompts = Scripted(), PromptGroups(torch.tensor([0, 1, 5, 2]))
        rollouts = drawn(4, 4, 0)
        signals = draw.score(prompts, rollouts)
        drawn_again = redraw(draw, varies(draw.objective), prompts, rollouts, signals, rounds)
        got, measured = drawn_again.rollouts, drawn_again.signals
        # A group of which no draw varies stays the first one.
        assert got.actions[:, 0, 0].tolist() == measured["x"].value[:, 0].tolist() == values
        asked = [index for index, _ in draw.calls]
        assert asked == [[1, 5, 2], [5, 2], [5], [5], [5]][:rounds] and drawn_again.groups == sum(map(len, asked))
        assert drawn_again.steps == 2 * 4 * drawn_again.groups
    assert [number for _, number in draw.calls] == [0, 1, 2, 3, 4]


def test_inputs_that_redrawn_prompts_lack_stay():
    """Images, where no redrawn prompt has one. A group in which a component of weight 0 varies is drawn again."""
    draw, prompts, images = Scripted(), PromptGroups(torch.tensor([0, 1])), torch.ones(2, 9, 3)
    rollouts = drawn(2, 4, 0)
    rollouts.inputs["patches"] = images
    once = redraw(draw, varies(draw.objective), prompts, rollouts, draw.score(prompts, rollouts), 1)
    got = once.rollouts
    assert once.groups == 1 and got.actions[:, 0, 0].tolist() == [0, 1] and got.inputs["patches"] is images
    once = redraw(draw, varies(draw.objective, [0.0]), prompts, rollouts, draw.score(prompts, rollouts), 1)
    assert draw.calls == [([1], 0), ([0, 1], 0)] and once.groups == 2


def test_no_round_of_any_update_shares_its_randomness(monkeypatch):
    counters, sample = [], ConstrainedGRPO.sample

    def spy(self, prompts, group_size, stream, update):
        if stream is Stream.REDRAW:
            counters.append(update)
        return sample(self, prompts, group_size, stream, update)

    monkeypatch.setattr(ConstrainedGRPO, "sample", spy)
    train(3, updates=3)
    assert counters == sorted(set(counters)) and {counter // 3 for counter in counters} == {0, 1, 2}


def train(redraws, updates=1, cost="sum"):
    parts = {"task": GridworldTask(cost), "estimator": ScalarizedAdvantages("group"), "group_size": 3}
    options = {"optimization": Optimization(aggregation="token_mean"), "redraws": redraws}
    module = grid_module(CONSTRAINTS, 12, **parts, **options)
    record = Memory()
    trainer = quiet_trainer(LagrangianCallback(SoftmaxAdam()), record, logger=record, max_steps=updates)
    trainer.fit(module, GridworldDataModule(16, train_prompts=100, size=5, lava=2))
    return record, module


def test_signals_by_step_are_redrawn_as_their_sums():
    (record, whole), (by_step, steps) = train(2), train(2, cost="steps")
    assert record.metrics[0]["rollout/redrawn"] == by_step.metrics[0]["rollout/redrawn"] > 0
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), steps.parameters(), strict=True))


def informative(outputs):
    return group_statistics(OBJECTIVE.components(outputs["signals"])).informative.any(0)


def test_what_is_measured_is_the_first_draw_and_what_is_trained_on_varies():
    plain, _ = train(0)
    redrawn, _ = train(3)
    first, outputs = plain.outputs[0], redrawn.outputs[0]
    kept, varies = informative(first), informative(outputs)
    assert 0 < kept.sum() < varies.sum() and varies[kept].all()
    for name in ("violations", "opportunities"):
        assert torch.equal(first[name], outputs[name])
    for tag in ("reward/mean", "rate/lava", "rollout/length", "multiplier/lava"):
        assert plain.metrics[0][tag] == redrawn.metrics[0][tag]
    # Groups that varied at once are left as they were; the advantage of the others is no longer 0.
    replaced = varies & ~kept
    for part in ("actions", "log_probs", "mask"):
        ours, theirs = getattr(outputs["rollouts"], part), getattr(first["rollouts"], part)
        assert torch.equal(ours[~replaced], theirs[~replaced]) and not torch.equal(ours[replaced], theirs[replaced])
    assert torch.equal(outputs["advantages"][kept], first["advantages"][kept])
    assert first["advantages"][~kept].eq(0).all() and outputs["advantages"][replaced].ne(0).any(-1).all()
    share = redrawn.metrics[0]["rollout/redrawn"]
    assert (~kept).float().mean() <= share <= 3 and "rollout/redrawn" not in plain.metrics[0]
    shares = [run.metrics[0]["groups/informative/reward"] for run in (plain, redrawn)]
    assert shares[0] < shares[1]
    # What the log-probabilities belong to is what is trained on: all ratios are 1.
    assert redrawn.metrics[0]["policy/clip_fraction"] == 0


def test_what_is_drawn_again_follows_from_the_seed_alone():
    """So a resumed run draws the same, and a prompt's group does not depend on the prompts beside it."""
    (one, _), (other, module) = train(2, updates=2), train(2, updates=2)
    for ours, theirs in zip(one.outputs, other.outputs, strict=True):
        assert torch.equal(ours["rollouts"].actions, theirs["rollouts"].actions)
    prompts = one.outputs[1]["prompts"]

    def groups(rows):
        some = chosen_prompts(prompts, rows)
        rollouts = module.sample(some, 3, Stream.ROLLOUT, 5)
        signals, _ = module.score(some, rollouts)

        def draw(chosen, number):
            others = module.sample(chosen, 3, Stream.REDRAW, 10 + number)
            return others, module.score(chosen, others)[0]

        return redraw(draw, varies(OBJECTIVE), some, rollouts, signals, 2)

    rows = torch.arange(len(prompts))
    whole = groups(rows)
    parts = [groups(part) for part in rows.tensor_split(3)]
    assert torch.equal(whole.rollouts.actions, torch.cat([part.rollouts.actions for part in parts]))
    assert whole.groups == sum(part.groups for part in parts) > 0
