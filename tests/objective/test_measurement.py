"""What is shown of an evaluation: prompts that agree, several processes, and what no choice of answers would meet.

`tests/test_against_loops.py` has metrics, standard errors, repeats and faults.
"""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_cgrpo.core.rollout import PromptGroups, Signal
from lightning_cgrpo.objective.evaluation import Evaluation, RunningSums
from lightning_cgrpo.objective.measurement import EVERY, best_sums, prompt_sums
from lightning_cgrpo.objective.moments import clustered_rates, moments
from lightning_cgrpo.objective.objective import Constraint, Objective
from lightning_cgrpo.objective.verdicts.clustered import ClusteredRate
from tests.generated import CONSTRAINTS, PARTLY, make_batch


def evaluated(index: list[int], rows: slice = slice(None)) -> Evaluation:
    """Of some of five prompts, of which those with an equal index are repeats."""
    objective = Objective({"goal": 1.0, "speed": 0.5}, {name: CONSTRAINTS[name] for name in ("lava", "polite", "slow")})
    batch = make_batch(np.random.default_rng(0), (5, 4, 6), False, {name: ["some"] * 5 for name in PARTLY})
    signals = {name: signal.mapped(lambda tensor: tensor[rows]) for name, signal in batch.signals.items()}
    running = RunningSums()
    sums = prompt_sums(objective, signals, batch.rollouts.mapped(lambda tensor: tensor[rows]))
    running.add(sums, PromptGroups(torch.tensor(index)[rows]))
    evaluation = running.evaluation(objective)
    running.clear()
    return evaluation


@pytest.mark.parametrize(
    ("texts", "about", "samples", "different"),
    [
        # The frames of pairs: metrics are those of all answers, and errors those of four samples.
        ("abcdef", {"sample": torch.tensor([0, 1, 2, 0, 1, 5])}, [[0, 3], [1, 4], [2], [5]], 4),
        # A repeat joins two clusters.
        ("abcade", {"clusters": ["log 1", "log 1", "log 2", "log 3", "log 3", "log 4"]}, [[0, 1, 3, 4], [2], [5]], 5),
    ],
    ids=["pairs", "clusters"],
)
def test_prompts_of_one_sample_are_measured_as_one_prompt_with_all_their_answers(
    texts: str, about: dict[str, Any], samples: list[list[int]], different: int
) -> None:
    objective = Objective("goal", {name: CONSTRAINTS[name] for name in ("lava", "polite", "slow")})
    batch = make_batch(np.random.default_rng(0), (6, 4, 6), False, {name: ["some"] * 6 for name in PARTLY})
    sums = prompt_sums(objective, batch.signals, batch.rollouts)
    together, merged = RunningSums(), RunningSums()
    for part in [slice(0, 6)] if "sample" in about else [slice(0, 4), slice(4, 6)]:
        asked = {name: values[part] for name, values in about.items()}
        prompts = PromptGroups(torch.arange(6)[part], {"prompt": list(texts[part])}, **asked)
        together.add({name: row[part] for name, row in sums.items()}, prompts)
    added = {name: torch.stack([row[part].sum() for part in samples]) for name, row in sums.items()}
    merged.add(added, PromptGroups(torch.arange(len(samples)), {"prompt": list("wxyz")[: len(samples)]}))
    found, expected = together.evaluation(objective), merged.evaluation(objective)
    assert (found.prompts, found.repeats) == (len(samples), 6 - len(samples))
    assert (found.answers, found.different) == (24, different)
    assert found.assumed == ("clusters" not in about) and expected.assumed
    assert found.metrics == pytest.approx(expected.metrics)
    assert found.standard_errors == pytest.approx(expected.standard_errors)
    for name, rate in expected.rates.items():
        assert found.rates[name].bounds(0.025) == pytest.approx(rate.bounds(0.025)), name


def test_agreeing_prompts_have_rates_without_standard_error() -> None:
    values = {"violations": 2.0, "opportunities": 3.0, "most": 5.0}
    rows = {f"{kind}/x": torch.full((3,), value).double() for kind, value in values.items()}
    added = {name: row.sum() for name, row in rows.items()} | moments(["x"], rows)
    sums = {name: value.item() for name, value in added.items()}
    expected = ClusteredRate(pytest.approx(2 / 3), None, 3, 9.0, 3, 3, 3.0, 3.0, 5.0, None)
    assert clustered_rates(["x"], sums)["x"] == expected
    none = {name: value * 0 for name, value in sums.items()}
    assert clustered_rates(["x"], none) == {}


PROCESS = """\
import dataclasses, importlib.util, json, sys
import torch.distributed as dist
path, store, rank, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
spec = importlib.util.spec_from_file_location("here", path)
here = importlib.util.module_from_spec(spec)
spec.loader.exec_module(here)
share = slice(*[(0, 2), (2, 2), (2, 5)][rank])
for index in ([0, 1, 2, 3, 4], [0, 1, 1, 2, 0]):
    print(json.dumps(dataclasses.asdict(here.evaluated(index, share))))
"""


@pytest.mark.slow
def test_three_processes_of_which_one_has_no_prompts(tmp_path: Path) -> None:
    """Each gets the evaluation of all prompts, standard errors included."""
    command = [sys.executable, "-c", PROCESS, __file__, str(tmp_path / "store")]
    running = [subprocess.Popen([*command, str(rank), "3"], stdout=subprocess.PIPE) for rank in range(3)]
    printed = [process.communicate(timeout=120)[0].splitlines() for process in running]
    for number, index in enumerate(([0, 1, 2, 3, 4], [0, 1, 1, 2, 0])):
        expected = evaluated(index)
        assert (expected.prompts, expected.answers) == (len(set(index)), 20)
        for lines in printed:
            evaluation = json.loads(lines[number])
            assert evaluation["metrics"] == pytest.approx(expected.metrics, rel=1e-12)
            assert evaluation["standard_errors"] == pytest.approx(expected.standard_errors, rel=1e-12)
            for count in ("prompts", "answers", "repeats"):
                assert evaluation[count] == getattr(expected, count)
            for name, rate in evaluation["rates"].items():
                assert ClusteredRate(**rate).bounds(0.05) == pytest.approx(expected.rates[name].bounds(0.05), rel=1e-9)


def test_no_other_choice_of_answers_comes_nearer_to_the_threshold() -> None:
    """Every choice of one answer for each of 4 prompts."""
    generator = torch.Generator().manual_seed(0)
    objective = Objective("goal", {"lava": Constraint(at_most=0.2), "polite": Constraint(at_least=0.9)})
    for _ in range(20):
        steps = torch.randint(1, 9, (4, 3), generator=generator).float()
        lava = (torch.rand(4, 3, generator=generator) * steps).round()
        polite = (torch.rand(4, 3, generator=generator) < 0.4).float()
        best = RunningSums()
        signals = {"lava": Signal(lava, count=lava, opportunities=steps), "polite": Signal(polite)}
        for half in (slice(0, 3), slice(3, 4)):
            sums = best_sums(objective, {n: s.mapped(lambda t, half=half: t[half]) for n, s in signals.items()})
            best.add(sums, PromptGroups(torch.arange(4)[half]))
        rates = best.rates(objective.means)
        choices = list(itertools.product(range(3), repeat=4))
        excess = [sum(float(lava[row, one] - 0.2 * steps[row, one]) for row, one in enumerate(c)) for c in choices]
        found = rates["lava"]
        assert (found.rate - 0.2) * found.opportunities == pytest.approx(min(excess), abs=1e-5)
        assert rates["polite"].rate == pytest.approx(1 - polite.amax(-1).mean().item())
        meets = ((lava <= 0.2 * steps + 1e-6) & (polite == 1)).any(-1).float().mean().item()
        assert rates[EVERY].rate == pytest.approx(1 - meets)


def test_more_batches_carry_that_clusters_are_not_known() -> None:
    known, unknown = RunningSums(), RunningSums()
    rows = {"answers": torch.ones(2).double()}
    known.add(rows, PromptGroups(torch.arange(2), {}, clusters=["a", "b"]))
    unknown.add(rows, PromptGroups(torch.arange(2, 4), {}))
    assert not known.assumed
    known.extend(unknown)
    assert known.assumed
    nothing = Evaluation()
    assert (nothing.prompts, nothing.answers, nothing.different, nothing.repeats) == (0, 0, 0, 0)
