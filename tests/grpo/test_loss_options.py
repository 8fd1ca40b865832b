"""An update with answers that were cut short, and with answers that another engine sampled."""

import math
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
import yaml

import lightning_cgrpo
from lightning_cgrpo import Constraint, EnvironmentSampler, Optimization
from lightning_cgrpo.callbacks import FixedWeights
from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.grpo.sampling_correction import SamplingCorrection
from lightning_cgrpo.tasks.gridworld import Gridworld
from tests.grids import grid_module
from tests.memory import Memory, flat
from tests.quiet import quiet_trainer


class Engine(EnvironmentSampler):
    """Reports what it sampled with only inexactly, and which answers it cut short.

    Args:
        error: ``[T]`` of the log-probabilities; None reports them as the policy's own.
        truncated: ``[G]``.
    """

    def __init__(self, error=None, truncated=None):
        super().__init__(Gridworld(max_steps=10))
        self.error, self.truncated = error, truncated

    def rollout(self, policy, prompts, group_size, noise):
        rollouts = super().rollout(policy, prompts, group_size, noise)
        if self.truncated is not None:
            rollouts.info["truncated"] = self.truncated.expand(rollouts.mask.shape[:2])
        if self.error is None:
            return rollouts
        return replace(rollouts, log_probs=None, sampling_log_probs=rollouts.log_probs - self.error)


def train(sampler, updates=1, **optimization):
    module = grid_module(
        {"lava": Constraint(at_most=0.01)},
        sampler=sampler,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        optimization=Optimization(**optimization),
    ).double()
    module.configure_model()
    start, record = flat(module.policy), Memory()
    weights = FixedWeights({"lava": 0})
    trainer = quiet_trainer(weights, record, logger=record, precision="64-true", max_steps=updates)
    trainer.fit(module, GridworldDataModule(4, train_prompts=100, size=5, lava=2))
    record.moves = torch.diff(torch.stack([start, *record.parameters]), dim=0)
    return record


def errors(*values):
    """Of the first steps; none in the others."""
    return torch.tensor([*values, *[0.0] * (10 - len(values))], dtype=torch.float64)


@pytest.mark.parametrize("minibatch_size", [None, 30])
def test_an_engine_that_reports_exactly_is_not_corrected(minibatch_size):
    """With one minibatch, old log-probabilities are known only once the first pass has been made."""
    options = {"minibatch_size": minibatch_size, "epochs": 2, "aggregation": "token_mean"}
    exact, plain = train(Engine(errors()), **options), train(Engine(), **options)
    torch.testing.assert_close(exact.parameters[0], plain.parameters[0], rtol=1e-9, atol=1e-12)
    assert exact.metrics[0]["sampling/ratio"] == pytest.approx(1) and exact.metrics[0]["sampling/capped"] == 0
    assert exact.metrics[0]["sampling/log_prob_gap"] == pytest.approx(0, abs=1e-12)
    assert not any(tag.startswith("sampling/") for tag in plain.metrics[0])


def test_an_error_everywhere_scales_the_step_up_to_the_cap():
    """On a single step of SGD: all weights are exp(error), or the cap."""
    plain = train(Engine())
    for error, factor in ((math.log(1.5), 1.5), (-0.5, math.exp(-0.5)), (math.log(5), 2.0)):
        got = train(Engine(errors(*[error] * 10)))
        torch.testing.assert_close(got.moves[0], factor * plain.moves[0], rtol=1e-6, atol=1e-9)
        assert got.metrics[0]["sampling/ratio"] == pytest.approx(math.exp(error))
        assert got.metrics[0]["sampling/capped"] == (factor == 2.0)
        assert got.metrics[0]["sampling/log_prob_gap"] == pytest.approx(abs(error))
    capped = train(Engine(errors(*[math.log(5)] * 10)), sampling=SamplingCorrection(high=3.0))
    torch.testing.assert_close(capped.moves[0], 3 * plain.moves[0], rtol=1e-6, atol=1e-9)
    off = train(Engine(errors(*[math.log(5)] * 10)), sampling=None)
    torch.testing.assert_close(off.moves[0], plain.moves[0], rtol=1e-6, atol=1e-9)
    assert off.metrics[0]["sampling/capped"] == 0 and off.metrics[0]["sampling/ratio"] == pytest.approx(5)


def test_what_an_engine_does_not_report_is_counted_and_left_as_it_is():
    with_gaps = train(Engine(errors(0.3, math.nan, math.inf, -0.2)), updates=2)
    filled = train(Engine(errors(0.3, 0.0, 0.0, -0.2)), updates=2)
    assert with_gaps.parameters[-1].isfinite().all()
    torch.testing.assert_close(with_gaps.parameters[-1], filled.parameters[-1], rtol=1e-9, atol=1e-12)
    for ours, theirs in zip(with_gaps.metrics, with_gaps.outputs, strict=True):
        assert ours["faults/sampling_log_probs"] == theirs["rollouts"].mask[..., 1:3].sum()
    assert "faults/sampling_log_probs" not in filled.metrics[0]


def test_truncated_answers_move_nothing_and_still_count():
    everything = train(Engine(truncated=torch.tensor([True] * 4)), mask_truncated=True, entropy_weight=0.1)
    assert not everything.moves.any() and everything.metrics[0]["rollout/masked"] == 1
    none = train(Engine(truncated=torch.tensor([False] * 4)), mask_truncated=True)
    plain = train(Engine(truncated=torch.tensor([True] * 4)))
    assert torch.equal(none.moves, plain.moves) and plain.moves.any()
    assert none.metrics[0]["rollout/masked"] == 0 and "rollout/masked" not in plain.metrics[0]
    # Signals, rates and group statistics are those of all answers.
    for tag in ("reward/mean", "rate/lava", "rollout/length"):
        assert everything.metrics[0][tag] == plain.metrics[0][tag]
    for name in ("violations", "opportunities", "advantages"):
        assert torch.equal(everything.outputs[0][name], plain.outputs[0][name])


PAGE = (Path(__file__).parents[2] / "docs/losses.md").read_text()
ROWS = [row.split("|")[1:3] for row in re.findall(r"^\| .*\|$", PAGE.partition("| TRL |")[0], re.MULTILINE)[1:]]

ELSEWHERE = (
    *({"model.estimator": "LeaveOneOut"}, {"model.estimator": "LagrangianGAE"}),
    *({"callbacks.reference": "examples.callbacks.reference_sync.ReferenceSync"}, {"model.redraws": 2}),
)
"""Those that are not the optimization's."""


@pytest.mark.parametrize(("name", "settings"), ROWS, ids=[name.strip() for name, _ in ROWS])
def test_the_settings_of_the_docs_are_accepted(name, settings):
    given = {key: yaml.safe_load(value) for key, value in re.findall(r"`([\w.]+): ([^`]+)`", settings)}
    if given in ELSEWHERE:
        return
    if "surrogate" in given:
        given["surrogate"] = getattr(lightning_cgrpo, given["surrogate"])()
    assert given and set(given) <= {field.name for field in fields(Optimization)}
    assert Optimization(**given) != Optimization() or "the default" in settings


def test_single_steps_are_units_of_their_own_in_the_correction_of_a_sampler():
    old, sampling = (torch.tensor(p, dtype=torch.float64).log() for p in ([0.5] * 5, [0.5, 0.4, 0.1, 1.0, math.nan]))
    ratios = SamplingCorrection(high=None, sequence=True).ratios(old, sampling, torch.ones(5, dtype=torch.bool))
    assert ratios.tolist() == pytest.approx([1, 1.25, 5, 0.5, 1])
