"""The loop of anchors with random factors: its groups, its rules, and a short run."""

import pytest
import torch

from examples import anchored_planner as loop


def test_a_chain_ends_at_the_predicted_drive_times_one_factor_an_axis():
    torch.manual_seed(0)
    drive = torch.rand(16)

    def head(states, times, context):
        return drive.expand_as(states)

    chains = loop.sample(head, torch.zeros(50, 16), torch.zeros(50, 1), factor=0.04)
    assert chains.shape == (50, 1 + loop.CHAIN.steps, 16)
    factors = (chains[:, -1] / drive).unflatten(1, (8, 2))
    assert torch.allclose(factors, factors[:, :1].expand_as(factors), atol=1e-5)
    assert factors[:, 0].std(0) == pytest.approx([0.04, 0.04], rel=0.3)
    assert torch.allclose(loop.sample(head, torch.zeros(2, 16), torch.zeros(2, 1), factor=0.0)[:, -1], drive)


def test_yaw_is_that_of_the_way_and_a_standing_car_keeps_its():
    points = torch.tensor([[5.0, 0.0], [10.0, 5.0], [10.0, 5.0], *[[10.1, 5.1]] * 5])
    found = loop.poses((points / loop.UNIT).flatten()[None])[0]
    assert torch.allclose(found[:, :2], points)
    assert found[:4, 2].tolist() == pytest.approx([0, torch.pi / 4, 0, 0])


def test_an_anchors_candidates_are_compared_with_each_other_and_get_their_own_advantages():
    scenes, group, anchors = 2, 3, 4
    # As chains lie: scene, then candidate, then anchor.
    numbers = torch.arange(scenes * group * anchors).view(scenes, group * anchors)
    groups = loop.by_anchor(numbers, group)
    assert groups.shape == (scenes * anchors, group)
    assert groups[1].tolist() == [1, 5, 9]  # of the first scene's second anchor
    assert torch.equal(loop.by_chain(groups, scenes), numbers.flatten())


def test_the_public_rule_counts_what_is_above_the_mean_and_fixes_violations():
    measured = {
        "epdms": torch.tensor([[1.0, 0.5, 0.0, 0.9]]),
        "NC": torch.tensor([[1.0, 1.0, 1.0, 0.5]]),
        "DAC": torch.tensor([[1.0, 1.0, 0.0, 1.0]]),
    }
    above = (1.0 - 0.6) / (measured["epdms"].std() + 1e-4)
    assert torch.allclose(loop.of_score(measured), torch.tensor([[float(above), 0.0, -1.0, -1.0]]))


def test_declared_rates_pay_for_violations_until_they_are_met():
    rule = loop.declared({"NC": 0.9, "DAC": 0.9, "EC": 0.5})
    progress = torch.tensor([[1.0, 0.8], [1.0, 0.8]])
    hits = torch.tensor([[0.5, 1.0], [0.0, 1.0]])  # the faster candidate collides
    measured = {"EP": progress, "NC": hits, "DAC": torch.ones(2, 2), "EC": torch.ones(2, 2)}
    for _ in range(20):
        advantages = rule(measured)
    assert (advantages[:, 0] < 0).all() and rule.weights["NC"] > 0.5


@pytest.mark.slow
def test_the_example_runs(tmp_path):
    found = loop.main(tmp_path / "store", pairs=16, updates=2, imitated=150, width=64)
    assert found.keys() == {"start", "of_score", "declared"}
    assert all(0 <= value <= 1 for row in found.values() for value in row.values())
    assert found["start"] != found["of_score"] != found["declared"]
    # A second call finds the store.
    stamp = (tmp_path / "store" / "index.json").stat().st_mtime
    loop.main(tmp_path / "store", pairs=16, updates=1, imitated=1, width=64)
    assert (tmp_path / "store" / "index.json").stat().st_mtime == stamp
    # A larger one writes it again.
    loop.main(tmp_path / "store", pairs=20, updates=1, imitated=1, width=64)
