"""Twelve specifications: policies are chosen before the look, the look is `certify`'s, and the page is computed."""

import subprocess

import numpy as np
import pytest
import yaml
from scipy.stats import binom

from benchmarks.first_looks import ROOT
from benchmarks.specifications.__main__ import MARKS, table
from benchmarks.specifications.curves import Policies, Policy, chance_in_pool, unsurpassed
from benchmarks.specifications.job import Run
from benchmarks.specifications.judged import certificate, standing
from benchmarks.specifications.support_notes import SUPPORT_NOTES
from benchmarks.specifications.word_problems import WORD_PROBLEMS as JOB
from lightning_cgrpo.__main__ import main
from lightning_cgrpo.objective.verdicts.binomial import most_certified


def answers(violations: int, tokens: int = 20) -> dict[str, np.ndarray]:
    """Right answers but for so many wrong ones among those of the look, and in proportion among the others."""
    count = JOB.selecting + JOB.looked
    correct = np.ones(count, np.uint8)
    for part, wrong in ((JOB.selects, violations * JOB.selecting // JOB.looked), (~JOB.selects, violations)):
        correct[np.flatnonzero(part)[:wrong]] = 0
    ones = np.ones(count, np.uint8)
    return {"tokens": tokens * ones, "correctness": correct, "format": ones, "integer": ones, "new": ones.astype(bool)}


def test_the_look_certifies_what_the_exact_test_certifies():
    """0.04, the error of a first look, is Holm's last level, because format and integers pass by far."""
    most = most_certified(JOB.looked, 1 - 0.80, 0.04)
    assert binom.cdf(most, JOB.looked, 0.2) <= 0.04 < binom.cdf(most + 1, JOB.looked, 0.2)
    assert certificate(JOB, "brief_80", answers(most))["decision"] == "certified"
    assert certificate(JOB, "brief_80", answers(most + 1))["decision"] == "undecided"
    assert certificate(JOB, "brief_80", answers(2 * JOB.looked // 5))["decision"] == "refuted"


def test_a_budget_of_tokens_is_of_whole_answers():
    """5,000 answers bound a mean of tokens closely."""
    found = certificate(JOB, "budget_19", answers(0, tokens=18) | {"tokens": np.tile([10, 26], 3_000).astype(np.uint8)})
    assert found["decision"] == "certified" and 18 < found["constraints"]["tokens"]["high"] < 18.7


def test_a_repeated_problem_counts_once():
    twice = answers(500)
    twice["new"][np.flatnonzero(~JOB.selects)[:100]] = False
    assert certificate(JOB, "brief_80", twice)["prompts"] == JOB.looked - 100


def test_a_policy_is_chosen_by_other_problems_than_the_looks():
    good, bad = answers(0), answers(2_500)
    mixed = {name: np.where(JOB.selects, values, bad[name]) for name, values in good.items()}
    assert standing(JOB, "brief_80", mixed) == standing(JOB, "brief_80", good)
    assert standing(JOB, "brief_80", good).qualified and not standing(JOB, "brief_80", bad).qualified
    assert standing(JOB, "budget_19", answers(0, tokens=18)).qualified
    assert not standing(JOB, "budget_19", answers(0, tokens=20)).qualified


def test_the_pools_share_is_the_mean_over_all_draws():
    counting = [n in (1, 4) for n in range(6)]
    random = np.random.default_rng(0)
    for runs in range(1, 7):
        drawn = [min(random.choice(6, runs, replace=False)) in (1, 4) for _ in range(4_000)]
        assert chance_in_pool(counting, runs) == pytest.approx(np.mean(drawn), abs=0.03)


def test_a_certified_policy_counts_unless_another_has_more_reward():
    noise = np.random.default_rng(0).normal(size=JOB.looked)
    levels = {"first": 0.0, "near": 0.0, "behind": -0.2, "refused": 1.0}
    chosen = {}
    for method, level in levels.items():
        # All have the same mean noise, so "near" is not below "first".
        rewards = level + (noise[::-1] if method == "near" else noise)
        chosen[method] = Policy(Run(method, "", 0), (True, 0.0), method != "refused", {}, rewards)

    class Chosen(Policies):
        def chosen(self, name: str) -> dict[str, Policy]:
            return chosen

    counts = unsurpassed(Chosen(JOB))
    assert [counts("brief_80", policy) for policy in chosen.values()] == [True, True, False, False]


def test_the_runs():
    assert [len(list(JOB.runs(method, 2))) for method in ("declared", "gdpo", "pool")] == [24, 2, 32]
    assert len(JOB.specifications) == 12


@pytest.mark.parametrize("job", [JOB, SUPPORT_NOTES], ids=lambda job: job.name)
def test_the_pools_weights(job):
    weights = job.fixed_weights
    assert len({tuple(of.values()) for of in weights}) == len(weights) == job.pool
    for of in weights:
        assert sum(of.values()) == pytest.approx(1, abs=3e-4)
        for name, (low, high) in job.weights.items():
            assert low * 0.99 < of[name] / of["reward"] < high * 1.01


JOBS_AND_METHODS = [
    (job, method) for job in (JOB, SUPPORT_NOTES) for method in job.methods if method not in job.retired
]


@pytest.mark.parametrize(("job", "method"), JOBS_AND_METHODS, ids=lambda part: getattr(part, "name", part))
def test_a_runs_settings_make_a_configuration(job, method, folder, capsys):
    configs, settings = job.settings(job, next(job.runs(method, 1)))
    (folder / "run.yaml").write_text(yaml.safe_dump(settings))
    arguments = []
    for path in (job.config, *configs, folder / "run.yaml"):
        arguments += ["-c", str(path)]
    with pytest.raises(SystemExit) as ended:
        main(["fit", *arguments, "--print_config"])
    printed = yaml.safe_load(capsys.readouterr().out)
    assert not ended.value.code
    if method == "pool":
        assert printed["callbacks"]["multipliers"]["init_args"]["weights"] == job.fixed_weights[0]
    declared = printed["model"]["init_args"]["objective"]["look"] is not None
    assert declared == (method == "declared")


@pytest.mark.parametrize("job", [JOB, SUPPORT_NOTES], ids=lambda job: job.name)
def test_the_specifications_were_committed_before_the_runs(job):
    """The file has not changed since."""
    path = f"benchmarks/specifications/{job.name}.yaml"
    command = ["git", "-C", str(ROOT), "log", "--format=%H", "--", path]
    printed = subprocess.run(command, capture_output=True, text=True, check=False)
    if printed.returncode or not printed.stdout:
        pytest.skip("no history")
    assert len(printed.stdout.split()) == 1


@pytest.mark.slow
def test_the_page_has_the_computed_tables():
    page = (JOB.results / "README.md").read_text()
    assert table(Policies(JOB)).strip() in page, "run `python -m benchmarks.specifications --write`"
    before = page.partition(MARKS[0].format(""))[0]
    assert "certified" in before
