"""Which runs are of one method, and what methods are called."""

import json
import sys

import pytest

from lightning_cgrpo import callbacks
from lightning_cgrpo.cli.method import constraints_of, key_of, method_of, only_shows, seed_of
from lightning_cgrpo.reporting.labels import labels_of, slug
from tests.reporting.conftest import changed, fixed

CONSTRAINTS = "model.init_args.objective.constraints"
REWARDS = {"model.init_args.estimator": {"class_path": "lightning_cgrpo.ScalarizedRewards"}}
CONTROLLER = "callbacks.multipliers.init_args.controller"


def key(changes=None, seed=0):
    return key_of(method_of(changed(changes, seed)))


@pytest.mark.parametrize(
    "changes",
    [
        {"trainer.max_steps": 5, "trainer.devices": 4, "trainer.strategy": "ddp", "trainer.precision": "32-true"},
        {"trainer.logger": None, "trainer.log_every_n_steps": 1, "trainer.val_check_interval": 7},
        {"ckpt_path": "runs/x/version_0/checkpoints/last.ckpt", "threads": 3},
        {"callbacks.pictures": None},
        {"callbacks.more": {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": {"mode": "max"}}},
        {"callbacks.more": "lightning.pytorch.callbacks.LearningRateMonitor"},
        {"callbacks.multipliers.init_args.stall": None},
        {"callbacks.multipliers.init_args.slack": None},
        {"model.init_args.estimator": {"class_path": "lightning_cgrpo.grpo.advantages.ScalarizedAdvantages"}},
        {"model.init_args.estimator": {"class_path": "lightning_cgrpo.ScalarizedAdvantages", "init_args": {}}},
        {"model.init_args.eval_group_size": 4, "data.init_args.test_prompts": 3},
        {"data.init_args.test_train_prompts": 3},
        {"callbacks.samples": {"class_path": "SampleAnswers", "init_args": {"write": True}}},
        {"model.init_args.optimizer.init_args.fused": True},
        {f"{CONSTRAINTS}.lava.signal": None},
    ],
)
def test_what_changes_no_learning_makes_no_method(changes):
    assert key(changes, seed=3) == key()


@pytest.mark.parametrize(
    "changes",
    [
        REWARDS,
        {f"{CONSTRAINTS}.lava.at_most": 0.2},
        {f"{CONSTRAINTS}.lava.role": "monitor"},
        {"model.init_args.optimizer.init_args.lr": 0.01},
        {f"{CONTROLLER}.init_args.lr": 0.1},
        {"callbacks.multipliers": None},
        {"callbacks.multipliers": fixed(lava=0.1)},
        {"callbacks.own": {"class_path": "my.Callback"}},
        {"callbacks.multipliers.init_args.bounds": {"class_path": "WeightBounds"}},
        {"trainer.precision": "bf16-mixed"},
        {"trainer.callbacks": [{"class_path": "lightning.pytorch.callbacks.EarlyStopping"}]},
        {"data.init_args.path": "gsm8k"},
        {"model.init_args.redraws": 1},
        {"model.init_args.optimization.sequence_ratio": True},
    ],
)
def test_what_changes_learning_makes_a_method(changes):
    assert key(changes) != key()


def test_callbacks_that_only_show_say_so_themselves():
    learning = {"FixedWeights", "LagrangianCallback", "ReferenceSync", "WeightSetter"}
    assert {name for name in callbacks.__all__ if not only_shows(f"lightning_cgrpo.callbacks.{name}")} == learning
    assert only_shows("SampleAnswers") and only_shows("lightning_cgrpo.callbacks.moved_since.SampleAnswers")


def test_own_callbacks_count_unless_they_say_otherwise(tmp_path, monkeypatch):
    text = "class Counts:\n    pass\n\nclass Shows:\n    changes_learning = False\n"
    (tmp_path / "own_callbacks.py").write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert key({"callbacks.own": {"class_path": "own_callbacks.Shows"}}) == key()
    assert key({"callbacks.own": {"class_path": "own_callbacks.Counts"}}) != key()
    assert "own_callbacks" not in sys.modules


def test_a_folder_counts_by_its_name_alone():
    assert key({"data.init_args.path": "/data/gsm8k"}) == key({"data.init_args.path": "openai/gsm8k"})
    assert key({"data.init_args.path": "/data/other"}) != key({"data.init_args.path": "openai/gsm8k"})
    policy = "model.init_args.policy"
    models = ({policy: {"class_path": "P", "init_args": {"model": m}}} for m in ("packaged:driver", "/models/driver"))
    assert len({key(model) for model in models}) == 1


def test_a_method_survives_json():
    method = method_of(changed({f"{CONTROLLER}.init_args.lr": 1.0}))
    assert key_of(json.loads(json.dumps(method))) == key_of(method)
    assert key({f"{CONTROLLER}.init_args.lr": 1.0}) == key({f"{CONTROLLER}.init_args.lr": 1})


def test_seed():
    assert seed_of(changed(seed=5)) == 5
    assert seed_of(changed({"seed_everything": True}, seed=5)) == 5
    assert seed_of({"seed_everything": None}) is None


def test_constraints_in_both_orientations():
    constraints = constraints_of(method_of(changed({f"{CONSTRAINTS}.lava.role": "monitor"})))
    assert constraints["lava"].at_most == 0.1 and constraints["lava"].role == "monitor"
    assert constraints["safe"].at_least == 0.8
    assert constraints_of({}) is None
    assert constraints_of(method_of(changed({f"{CONSTRAINTS}.lava.at_most": 7}))) is None


def labels(*changes):
    return labels_of([method_of(changed(change)) for change in changes])


def test_labels_tell_what_differs():
    loose, watched = {f"{CONSTRAINTS}.lava.at_most": 0.5}, {f"{CONSTRAINTS}.lava.role": "monitor"}
    pid = {CONTROLLER: {"class_path": "lightning_cgrpo.multipliers.PID", "init_args": {"kp": 2, "ki": 1}}}
    bounds = {"callbacks.multipliers.init_args.bounds": {"class_path": "WeightBounds", "init_args": {"floor": 0.05}}}
    assert labels({}) == ["ScalarizedAdvantages"]
    assert labels({}, REWARDS) == ["ScalarizedAdvantages", "ScalarizedRewards"]
    assert labels(loose, watched) == ["lava at_most 0.5", "lava monitored"]
    assert labels({}, {f"{CONSTRAINTS}.safe.at_least": 0.9}) == ["safe at_least 0.8", "safe at_least 0.9"]
    costs = [{f"{CONSTRAINTS}.lava": {"at_most": 0.1, "cost": cost}} for cost in ("signal", "excess")]
    assert labels(*costs) == ["lava at_most 0.1", "lava at_most 0.1 cost=excess"], "defaults are not named"
    # The arguments of one class aren't compared with those of another.
    assert labels({}, pid) == ["SoftmaxAdam", "PID"]
    assert labels({}, {f"{CONTROLLER}.init_args.lr": 0.002}) == ["controller.lr=0.01", "controller.lr=0.002"]
    assert labels({}, {"callbacks.multipliers": None}) == ["SoftmaxAdam", "no multipliers"]
    assert labels(
        {"callbacks.multipliers": fixed(reward=1.0, lava=0.05, safe=0.1)},
        {"callbacks.multipliers": fixed(lava=0.1, safe=0.1)},
    ) == ["fixed lava 0.05, safe 0.1", "fixed lava 0.1, safe 0.1"]
    # What most of them share is left out.
    assert labels({}, loose, pid, bounds, REWARDS) == [
        "ScalarizedAdvantages",
        "ScalarizedAdvantages, lava at_most 0.5",
        "ScalarizedAdvantages, PID",
        "ScalarizedAdvantages, WeightBounds",
        "ScalarizedRewards",
    ]
    assert labels({}, pid, bounds, loose)[0] == "lava at_most 0.1, SoftmaxAdam"


def test_weights_that_a_policy_began_from_make_a_method():
    first, second, none = (method_of(changed(), weights) for weights in ("8c1f0a2b6d3e", "0a2b6d3e8c1f", None))
    assert len({key_of(first), key_of(second), key_of(none)}) == 3
    assert labels_of([first, second]) == ["weights=8c1f0a2b6d3e", "weights=0a2b6d3e8c1f"]
    # Beside the multipliers, whose words are told as well.
    pid = {CONTROLLER: {"class_path": "lightning_cgrpo.multipliers.PID"}}
    assert labels_of([first, method_of(changed(pid), "8c1f0a2b6d3e"), none]) == [
        "SoftmaxAdam, weights=8c1f0a2b6d3e",
        "PID, weights=8c1f0a2b6d3e",
        "SoftmaxAdam, without weights",
    ]
    assert labels_of([first, method_of(changed(pid), "8c1f0a2b6d3e")]) == ["SoftmaxAdam", "PID"]


def test_labels_are_unique_and_make_names_of_files():
    changes = [{}, REWARDS, {"data.init_args.lava": 3}, {"callbacks.own": {"class_path": "my.Callback"}}]
    found = labels(*changes)
    assert len(set(found)) == len(found)
    assert "lava=3" in found[2] and "Callback" in found[3]
    assert slug("ScalarizedRewards, lava at_most 0.05") == "scalarizedrewards-lava-at-most-0.05"
    assert slug("λ?") == "run"
