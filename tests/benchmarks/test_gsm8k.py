"""The benchmark of the word problems: its runs are what their names say."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gsm8k.experiments import METHODS, paper
from benchmarks.gsm8k.run import GSM8K
from benchmarks.runner.ledger import Ledger, fingerprint, weights
from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.errors import UserError

ROOT = Path(__file__).parents[2]


def test_every_configuration_is_accepted_and_is_what_its_name_says(monkeypatch):
    monkeypatch.chdir(ROOT)
    runs = paper()
    assert len(runs) == 3 * len(METHODS) == len({run.name for run in runs})
    seen = set()
    for run in runs:
        config, _ = read_arguments("fit", run.arguments("logs"))
        model, multipliers = config["model"]["init_args"], config["callbacks"]["multipliers"]
        assert model["seed"] == config["data"]["init_args"]["seed"] == run.seed
        learned = multipliers["class_path"].endswith("LagrangianCallback")
        assert learned == run.name.startswith(("scalarized", "dual_rate"))
        assert model["estimator"]["class_path"].endswith("GDPO") == run.name.startswith("gdpo")
        assert model["estimator"]["class_path"].endswith("ScalarizedRewards") == run.name.startswith(
            "scalarized_rewards"
        )
        if not learned:
            assert len(set(multipliers["init_args"]["weights"].values())) == 1
        if run.name.startswith("dual_rate"):
            assert multipliers["init_args"]["controller"]["init_args"]["lr"] == 1e-4
        assert config["trainer"]["max_steps"] == run.updates
        seen.add(json.dumps([config["model"], config["data"], multipliers], sort_keys=True, default=str))
    assert len(seen) == len(runs)


def test_the_committed_results_are_complete():
    """Every run that the ledger names has its numbers here, of the configuration as it is."""
    ledger = Ledger(Path("none"), ROOT / GSM8K.results)
    known = {run.name: run for run in paper()}
    assert set(ledger.records) == set(ledger.saved) == set(known)
    assert all(ledger.in_results(known[name]) for name in ledger.records)


def test_other_weights_behind_the_same_name_make_another_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = replace(paper()[0], overrides=("--model.policy.model=mine",))
    own = tmp_path / "mine"
    own.mkdir()
    for name in ("config.json", "model.safetensors"):
        (own / name).write_text(name)
    first = fingerprint(run)
    (own / "model.safetensors").write_text("others")
    fingerprint.cache_clear(), weights.cache_clear()
    assert fingerprint(run) != first
    (own / "config.json").unlink()
    fingerprint.cache_clear(), weights.cache_clear()
    with pytest.raises(UserError, match=r"got 'mine': the directory has no config.json"):
        fingerprint(run)
    fingerprint.cache_clear(), weights.cache_clear()
