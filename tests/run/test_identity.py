"""Which runs are of one method."""

import json

import pytest

from lightning_cgrpo import callbacks
from lightning_cgrpo.run.identity import identity_of, key_of, method_of, seed_of
from lightning_cgrpo.settings.effects import learning, only_shows
from tests.cli.report.conftest import changed, fixed

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
        {"callbacks.multipliers.init_args.bounds": None},
        {"model.init_args.estimator": {"class_path": "lightning_cgrpo.grpo.advantages.ScalarizedAdvantages"}},
        {"model.init_args.estimator": "lightning_cgrpo.ScalarizedAdvantages"},
        {"model.init_args.eval_group_size": 4, "data.init_args.test_prompts": 3},
        {"callbacks.samples": {"class_path": "SampleAnswers", "init_args": {"write": True}}},
        {"model.init_args.optimizer.init_args.fused": True},
        {f"{CONSTRAINTS}.lava.signal": None},
        {f"{CONSTRAINTS}.lava.range": [0, 1]},
    ],
)
def test_what_changes_no_learning_makes_no_method(changes):
    assert key(changes, seed=3) == key()


@pytest.mark.parametrize(
    "changes",
    [
        REWARDS,
        {f"{CONSTRAINTS}.lava.at_most": 0.2},
        {"model.init_args.optimizer.init_args.lr": 0.01},
        {"callbacks.multipliers": None},
        {"callbacks.multipliers.init_args.stall": None},
        {"callbacks.multipliers": fixed(lava=0.1)},
        {"callbacks.own": {"class_path": "my.Callback"}},
        {"trainer.precision": "bf16-mixed"},
        {"trainer.callbacks": [{"class_path": "lightning.pytorch.callbacks.EarlyStopping"}]},
        {"data.init_args.path": "gsm8k"},
        {"model.init_args.optimization.sequence_ratio": True},
        {"data.class_path": "PromptDataModule", "data.init_args": {"path": "p.jsonl", "val_prompts": 40}},
        {"data.init_args.scenes": {"class_path": "GeneratedScenes", "init_args": {"seed": 21}}},
    ],
)
def test_what_changes_learning_makes_a_method(changes):
    assert key(changes) != key()


def test_callbacks_that_only_show_say_so_themselves():
    learning = {"FixedWeights", "LagrangianCallback", "WeightSetter"}
    classes = set(callbacks.__all__) - {"default_callbacks"}
    assert {name for name in classes if not only_shows(f"lightning_cgrpo.callbacks.{name}")} == learning
    assert only_shows("SampleAnswers") and only_shows("lightning_cgrpo.callbacks.moved_since.SampleAnswers")
    assert only_shows("lightning.pytorch.callbacks.ModelCheckpoint") and not only_shows("mine.ModelCheckpoint")


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


def test_a_saved_method_is_known_whatever_range_it_recorded():
    """Runs recorded ranges until they counted as what only bounds certificates."""
    now = method_of(changed({f"{CONSTRAINTS}.lava.where": {"range": 3}}))
    saved = json.loads(json.dumps(now))
    constraints = saved["model"]["init_args"]["objective"]["constraints"]
    constraints["lava"]["range"] = [0, 1]
    assert key_of(saved) != key_of(now) == key_of(learning(saved))
    assert constraints["lava"]["range"] == [0, 1], "a copy"
    assert learning({"run": "mine"}) == {"run": "mine"} and learning({"model": "my.Model"}) == {"model": "my.Model"}


def test_an_identity_has_seed_and_length_too():
    assert seed_of(changed(seed=5)) == 5
    assert seed_of(changed({"seed_everything": True, "model.init_args.seed": 5})) == 5
    assert seed_of({"seed_everything": None}) is None
    same = identity_of(changed(seed=5))
    assert (same["seed"], same["length"]) == (5, {"max_steps": 100}) and same["method"] == method_of(changed())
    assert identity_of(changed({"trainer.max_steps": 7}))["length"] == {"max_steps": 7}


@pytest.mark.parametrize(
    ("data", "counts"),
    [("GridworldDataModule", False), ("SeedDataModule", False), ("PromptDataModule", True), ("my.Data", True)],
)
def test_validation_prompts_that_training_loses_change_learning(data, counts):
    few, many = ({"data": {"class_path": data, "init_args": {"val_prompts": number}}} for number in (40, 80))
    assert (method_of(few) != method_of(many)) == counts


@pytest.mark.parametrize("place", ["data", "data.init_args.scenes", "model", "model.init_args.policy.init_args.lora"])
def test_a_seed_that_a_configuration_names_does_not_follow_the_runs(place):
    def of(seed):
        config = {"seed_everything": 0, "model": {"class_path": "ConstrainedGRPO"}, "data": {"class_path": "Data"}}
        node = config
        for key in place.split("."):
            node = node.setdefault(key, {})
        node.setdefault("init_args" if "class_path" in node else "arguments", {})["seed"] = seed
        return identity_of(config)

    assert of(1) != of(2)


def test_an_own_class_of_a_shipped_ones_name_is_another_method():
    def of(optimizer):
        return key({"model.init_args.optimizer": {"class_path": optimizer, "init_args": {"lr": 0.001}}})

    assert of("torch.optim.Adam") == of("torch.optim.adam.Adam") == of("Adam") != of("mine.Adam")
    assert of("mine.Shampoo") == of("mine_moved.Shampoo") == of("Shampoo")
    assert key({"callbacks.multipliers.class_path": "mine.LagrangianCallback"}) != key()
    assert key({"callbacks.pictures.class_path": "mine.Pictures"}) != key()
