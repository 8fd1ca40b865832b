"""The main job as a user runs it: every method trains, resumes and is tested in both stages."""

import json
import shlex
from pathlib import Path

import pytest
import torch

from benchmarks.navsim.experiments import METHODS, paper
from benchmarks.navsim.run import NAVSIM
from benchmarks.navsim.scores import collect, table
from benchmarks.runner.ledger import Ledger
from lightning_cgrpo.__main__ import main, read_arguments
from lightning_cgrpo.errors import UserError

ROOT = Path(__file__).parents[1]
SMALL = (
    "-c configs/navsim.yaml --data.prompts_per_update=2 --data.train_prompts=8 --data.val_prompts=2 "
    "--data.test_prompts=3 --model.group_size=4 --model.eval_group_size=2 --callbacks.initial_rates.batches=1 "
    "--callbacks.progress=null --trainer.enable_progress_bar=false --trainer.enable_model_summary=false"
)
OVERRIDES = {name: [f"-c configs/ablations/navsim/{file}.yaml" for file in files] for name, files in METHODS.items()}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(name, *more):
    main([name, *shlex.split(" ".join((SMALL, *more)))])


@pytest.mark.slow
def test_the_main_job(folder):
    command("fit", "--trainer.max_steps=2 --callbacks.drives.every_n_updates=1")
    command("fit", "--trainer.max_steps=3 --ckpt_path=last")
    command("test", "--ckpt_path=last")
    (run,) = folder.glob("runs/navsim,*/version_1")
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 3
    drivers = json.loads((run / "scores.json").read_text())["drivers"]
    assert list(drivers) == ["policy", "PDM-Closed", "constant velocity", "human"]
    policy = drivers["policy"]
    assert (policy["stage_one"]["scenes"], policy["stage_one"]["answers"]) == (3, 6)
    assert policy["stage_two"]["scenes"] <= 6 and 0 <= policy["both"]["EPDMS"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name, files in METHODS.items() if files])
def test_every_method_trains(folder, method):
    command("fit", *OVERRIDES[method], "--trainer.max_steps=1 --trainer.limit_val_batches=0 --callbacks.drives=null")
    assert len(list(folder.glob("runs/*/version_0/checkpoints/last.ckpt"))) == 1


def test_methods_are_what_they_are_called():
    """The paper's rows: estimators, weights, rewards; no two files' runs in one folder."""
    found = {}
    for run in paper():
        if run.seed == 0:
            files = [word for file in run.files for word in ("-c", file)]
            config, _ = read_arguments("fit", [*files, *run.overrides])
            settings, weights = config["model"]["init_args"], config["callbacks"]["multipliers"]
            given = weights["init_args"].get("weights", "learned")
            if isinstance(given, dict):
                given = tuple(given.get(name, 1) for name in ("NC", "DAC", "DDC", "reward"))
            estimator = settings["estimator"]
            estimator = estimator if isinstance(estimator, str) else estimator["class_path"]
            found[run.name.removesuffix("_seed0")] = (
                settings["objective"]["reward"],
                estimator.removeprefix("lightning_cgrpo.Scalarized"),
                given,
                {settings["objective"]["constraints"][name]["at_least"] for name in ("NC", "DAC", "DDC")},
                config["trainer"]["logger"]["init_args"]["name"],
            )
    equal, informed = (0.25, 0.25, 0.25, 0.25), (0.1, 0.8, 0.05, 0.05)
    assert all(method[3] == {0.95} for method in found.values())
    assert {name: method[:3] for name, method in found.items()} == {
        "cgrpo_scalarized_advantages": ("wat", "Advantages", "learned"),
        "cgrpo_scalarized_rewards": ("wat", "Rewards", "learned"),
        "grpo_epdms": ("epdms", "Advantages", (0, 0, 0, 1)),
        "equal_weights_scalarized_advantages": ("wat", "Advantages", equal),
        "equal_weights_scalarized_rewards": ("wat", "Rewards", equal),
        "informed_weights_scalarized_advantages": ("wat", "Advantages", informed),
        "informed_weights_scalarized_rewards": ("wat", "Rewards", informed),
    }
    assert len({method[4] for method in found.values()}) == len(found)


def test_prompts_ask_for_what_the_task_reads(folder):
    with pytest.raises(UserError, match="try the same in both"):
        command("fit", "--data.form.answer.waypoints=3 --trainer.max_steps=1")


def test_the_benchmark_s_table(tmp_path):
    stage = dict.fromkeys(("NC", "DAC", "DDC", "TLC", "EP", "HC", "ADE@4s"), 0.5)
    for seed, epdms in enumerate((0.6, 0.8)):
        one = {"stage_one": stage | {"EPDMS": epdms}, "stage_two": None, "both": None}
        file = tmp_path / f"mine_seed{seed}" / "version_0" / "scores.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"drivers": {"policy": one}}))
    names = ["mine_seed0", "mine_seed1", "mine_seed2"]
    scores = collect(tmp_path, tmp_path / "out" / "scores.json", names)
    assert list(scores) == names[:2]
    (row,) = [line for line in table(scores, {}).splitlines() if line.startswith("| mine")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:4] == ["mine", "2", "S1", "0.500 ± 0.000"] and cells[9] == "0.700 ± 0.141"
    # What was collected is kept where the logs are gone.
    assert collect(Path("nowhere"), tmp_path / "out" / "scores.json", names) == scores


def test_the_committed_results_are_of_the_model_and_configurations_as_they_are(monkeypatch):
    monkeypatch.chdir(ROOT)
    ledger = Ledger(Path("none"), NAVSIM.results)
    scores = json.loads((NAVSIM.results / "paper" / "scores.json").read_text())
    runs = paper()
    assert set(ledger.records) == set(ledger.saved) == set(scores) == {run.name for run in runs}
    assert all(ledger.in_results(run) for run in runs)
