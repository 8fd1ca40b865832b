"""A certificate's policy and prompts are known by content: settings with defaults, code, files and prompts."""

import json
import shutil

import pytest

from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.cli.certify.policy_identity import data_of, measuring
from lightning_cgrpo.cli.preparation import import_names
from lightning_cgrpo.policies.model_files import PACKAGED

REWARDS = '"""Rewards."""\n\ndef brief(completions):\n    return [0.0 for _ in completions]\n'
ARGUMENTS = [
    *("-c", "configs/gsm8k.yaml", "-c", "configs/ablations/gsm8k/no_look.yaml", "--model.policy.model=mine"),
    *("--model.task=FunctionTask", "--model.task.signals={brief: rewards_of_identity.brief}"),
    *("--data=PromptDataModule", "--data.path=a/train.jsonl", "--data.test_path=a/test.jsonl"),
    "--model.objective={reward: brief, constraints: {tokens: {mean_at_most: 9}}}",
]


@pytest.fixture(autouse=True)
def home(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    import_names()
    (folder / "rewards_of_identity.py").write_text(REWARDS)
    for name in ("mine", "copy"):
        shutil.copytree(PACKAGED / "word-problems", folder / name)
    for name, prompt in (("a", "one"), ("b", "two")):
        (folder / name).mkdir()
        for split in ("train", "test"):
            (folder / name / f"{split}.jsonl").write_text(json.dumps({"prompt": prompt}) + "\n")
    return folder


def made(*more):
    config, _ = read_arguments("certify", [*ARGUMENTS, *more])
    return config


ENGINE = "--model.sampler.engine=lightning_cgrpo.samplers.transformers_engine.TransformersEngine"


@pytest.mark.parametrize(
    ("given", "change", "same"),
    [
        ([], "--model.sampler.min_p=0.0", True),  # the default
        ([], "--model.sampler.stop=[]", True),
        ([], "--model.sampler.stop=[x]", False),
        ([], "--model.policy.model=copy", True),  # models count by their files
        ([], "--model.policy.temperature=0.5", False),
        ([], "--model.sampler.max_new_tokens=7", False),
        ([], "--model.task.time_limit=61", False),
        ([ENGINE], "--model.sampler.engine.cuda_graphs=false", True),  # changes speed and rounding
    ],
)
def test_settings_count_with_their_defaults_but_for_those_of_computation(given, change, same):
    assert (measuring(made(*given, change), None) == measuring(made(*given), None)) == same


def test_a_setting_that_is_younger_than_a_certificate_changes_none():
    assert "sampler.stop" not in measuring(made(), None)["settings"]


@pytest.mark.parametrize(
    ("file", "old", "new", "same"),
    [
        ("rewards_of_identity.py", "Rewards.", "The rewards.", True),
        ("rewards_of_identity.py", "0.0", "1.0", False),
        ("mine/tokenizer.json", "{", "{ ", False),
        ("mine/config.json", "{", "{ ", False),
    ],
)
def test_code_and_files_count(home, file, old, new, same):
    before = measuring(made(), None)
    text = (home / file).read_text()
    (home / file).write_text(text.replace(old, new, 1))
    assert (measuring(made(), None) == before) == same


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (["--data.path=b/train.jsonl", "--data.eval_prompts=3", "--data.seed=5"], True),
        (["--data.test_path=b/test.jsonl"], False),
        (["--data.system_prompt=Briefly."], False),
    ],
)
def test_test_prompts_count_by_content(change, same):
    assert (data_of(made(*change)) == data_of(made())) == same


def test_a_secret_of_the_data_is_in_no_record(monkeypatch):
    found = []
    for value in ("hunter2", "hunter3"):
        monkeypatch.setenv("MY_SECRET", value)
        settings, _ = data_of(made("--data.system_prompt=${oc.env:MY_SECRET}"))
        found.append(settings["data.system_prompt"])
    assert all(text.startswith("${oc.env:MY_SECRET} (") and "hunter" not in text for text in found)
    assert found[0] != found[1]
