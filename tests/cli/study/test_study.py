"""Study files: how they are read, their errors, and that shipped variants differ and pages are right."""

import json
import re
from pathlib import Path

import pytest

from lightning_cgrpo.cli.study.study import configuration, read_study
from lightning_cgrpo.settings.configuration import PACKAGED
from tests.refusals import refused

ROOT = Path(__file__).parents[3]
SHIPPED = sorted((ROOT / "configs/studies").glob("*.yaml"))


@pytest.fixture
def study(folder):
    """Writes a study file, and reads it."""

    def write(text):
        (folder / "mine.yaml").write_text(text)
        return read_study("mine.yaml")

    return write


def test_a_study_is_read(study):
    found = study(
        "base: [configs/gridworld.yaml]\n"
        "variants:\n"
        "  plain: ''\n"
        "  pid: --callbacks.multipliers.controller=PID --model.group_size=4\n"
        "overrides: --trainer.max_steps=20 --model.group_size=16\n"
        "seeds: [3, 5]\n"
        "after: [test --ckpt_path=last, predict]\n"
        "at_once: 2\n"
    )
    assert [run.name for run in found.runs] == ["plain,seed=3", "pid,seed=3", "plain,seed=5", "pid,seed=5"]
    assert found.after == (("test", "--ckpt_path=last"), ("predict",)) and found.at_once == 2
    last = configuration(found.runs[-1])
    assert last["seed_everything"] == 5 and last["trainer"]["max_steps"] == 20
    assert last["model"]["init_args"]["group_size"] == 4, "a variant comes after the overrides of all variants"
    assert last["callbacks"]["multipliers"]["init_args"]["controller"]["class_path"] == "PID"
    assert last["trainer"]["logger"]["init_args"] == {"save_dir": "runs/mine", "name": "pid,seed=5"}
    assert found.runs[-1].folder == Path("runs/mine/pid,seed=5")


def test_a_base_alone_is_a_study(study):
    found = study("base: configs/gridworld.yaml\nseeds: 2\n")
    assert [run.name for run in found.runs] == ["gridworld,seed=0", "gridworld,seed=1"]


BASE = "base: configs/gridworld.yaml\n"
ERRORS = {
    "varients: {}": "Did you mean 'variants'?",
    "variants: [a]": "Expected variants",
    "variants: {a=b: ''}": "got 'a=b'",
    "variants: {a: --x='1}": "No closing quotation",
    "seeds: 0": "Expected seeds",
    "after: tst --ckpt_path=last": "but got 'tst'. Did you mean 'test'?",
    "after: [rm -r x]": "Expected validate or test or predict or export in after",
}


@pytest.mark.parametrize("line", ERRORS)
def test_errors_are_one_line(study, line):
    assert ERRORS[line] in refused(study, f"{BASE}{line}\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--trainer.max_step=3", "Did you mean 'max_steps'"),
        ("--trainer.logger=WandbLogger", "TensorBoardLogger or a CSVLogger"),
    ],
)
def test_errors_of_a_variant_name_it(study, arguments, words):
    (run,) = study(f"{BASE}variants: {{a: '{arguments}'}}\n").runs
    message = refused(configuration, run)
    assert message.startswith("Variant 'a': ") and words in message


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_variants_differ(file):
    assert (PACKAGED / "studies" / file.name).is_file(), "shipped with the package"
    study = read_study(str(file))
    configurations = [configuration(run) for run in study.runs if run.seed == study.seeds[0]]
    parts = [[one["model"], one["data"], one["callbacks"]["multipliers"]] for one in configurations]
    assert len({json.dumps(part, sort_keys=True, default=str) for part in parts}) == len(study.variants)


PAGE = (ROOT / "docs/studies.md").read_text(encoding="utf-8")
YAML = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def test_the_first_study_of_the_page(study):
    found = study(YAML[0])
    assert len({run.name for run in found.runs}) == 9 and found.after and found.at_once == 2
    assert all(configuration(run)["trainer"]["max_steps"] == 2000 for run in found.runs)


def test_a_user_s_own_problem(folder):
    (folder / "mine.yaml").write_text(YAML[1])
    (folder / "study.yaml").write_text(YAML[2])
    (functions,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    tour = (ROOT / "docs/tour.md").read_text(encoding="utf-8")
    assert functions.strip() in tour
    study = read_study("study.yaml")
    for run in study.runs:
        model = configuration(run)["model"]["init_args"]
        assert model["task"]["init_args"]["signals"].keys() == {"brief", "says_it"}
        assert model["policy"]["init_args"]["model"] == "models/tiny-qwen2"
    assert [run.name for run in study.runs[:2]] == ["softmax,seed=0", "pid,seed=0"] and len(study.runs) == 6
