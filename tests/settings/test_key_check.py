"""Misspelled keys are answered with a suggestion; tests/cli/test_command_line.py: before anything heavy is imported."""

import importlib
import inspect
from pathlib import Path

import pytest

from lightning_cgrpo.settings import configuration
from lightning_cgrpo.settings.configuration import DEFAULTS, Config, file_layer, override_layer
from lightning_cgrpo.settings.key_check import NAMES_OF_TRL, REMOVED, ROOT_KEYS, check_keys
from lightning_cgrpo.settings.signatures import signature_of
from tests import refusals


def gridworld(*overrides: str) -> Config:
    layers = [file_layer(name) for name in (str(DEFAULTS), "configs/gridworld.yaml")]
    pairs = [text.split("=", 1) for text in overrides]
    return configuration.build([*layers, *(override_layer(key, value) for key, value in pairs)])


def refused(*overrides: str, extra: tuple[str, ...] = ()) -> str:
    return refusals.refused(check_keys, gridworld(*overrides), extra)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        # misspelled keys
        (["trainr.max_steps=1"], "Did you mean 'trainer'?"),
        (["model.group_siz=1"], "Did you mean 'group_size'?"),
        (["model.init_arg.group_size=1"], "Did you mean 'init_args'?"),
        (["model.objective.constrains=1"], "Did you mean 'constraints'?"),
        (["model.objective.constraints.new.at_leats=1"], "Did you mean 'at_least'?"),
        (["model.optimizer.lrr=1"], "Did you mean 'lr'?"),
        (["callbacks.multipliers.controller.lrr=1"], "Did you mean 'lr'?"),
        # classes and what they take
        (["callbacks.multipliers=FixedWeights", "callbacks.multipliers.weigths={a: 1}"], "Did you mean 'weights'?"),
        (["callbacks.multipliers.controller.class_path=lightning_cgrpo.multipliers.PIDD"], "Did you mean 'PID'?"),
        (["model.estimator=lightning_cgrpo.ScalarizedRewards", "model.estimator.eps=1"], "It takes: scale."),
        (["model.lr_scheduler=torch.optim.lr_scheduler.LinearLR", "model.lr_scheduler.start=1"], "(LinearLR)"),
        (["callbacks.mine={class_path: my.Own, init_arg: {}}"], "beside class_path. Did you mean 'init_args'?"),
        (["callbacks.mine={class_path: my.Own, weights: {}}"], "Arguments of the class belong under init_args."),
        # names of TRL, and an argument of before with its value of now
        (["model.beta=0.1"], "Try model.optimization.kl_weight."),
        (["num_train_epochs=1"], "Try trainer.max_epochs."),
        (["callbacks.multipliers.controller={class_path: DampedAscent, init_args: {smoothing: 0.5}}"],
         "Unknown key 'smoothing' in callbacks.multipliers.controller (DampedAscent). It is 0.7 now, and no setting"),
        # keys too high
        (["model.kl_weight=0.1"], "(model.optimization.kl_weight)"),
        (["model.lr=0.1"], "(model.optimizer.lr)"),
        (["kl_weight=0.1"], "(model.optimization.kl_weight)"),
        (["lr=0.1"], "(model.optimizer.lr)"),
        (["constraints={}"], "(model.objective.constraints)"),
        (["callbacks.multipliers.margin=1", "callbacks.multipliers.controller=DampedAscent"],
         "(callbacks.multipliers.controller.margin)"),
        # values: Lightning would take `true` for the seed 0
        (["seed_everything=true"], "seed_everything to be a number, but got true, try seed_everything: 1"),
        (["seed_everything=True"], "seed_everything to be a number, but got true, try seed_everything: 1"),
    ],
)  # fmt: skip
def test_a_mistake_is_answered_by_what_is_meant(overrides: list[str], words: str) -> None:
    assert words in refused(*overrides)


@pytest.mark.parametrize("argument", REMOVED)
def test_a_removed_argument_is_not_there(argument: str) -> None:
    name, _, removed = argument.partition(".")
    places = dict.fromkeys(("GDPO", "RewardModel", "MLPCritic"), "lightning_cgrpo")
    places |= {"FromScratch": "lightning_cgrpo.tasks.gsm8k.from_scratch"}
    places |= {"VisionFromScratch": "lightning_cgrpo.tasks.driving.from_scratch"}
    found = signature_of(f"{places[name]}.{name}" if name in places else name)
    assert found is not None and removed not in found.parameters


def test_keys_of_the_command() -> None:
    check_keys(gridworld("verbose=true"), ("verbose",))
    assert refused("verbos=true", extra=("verbose",)).endswith("Did you mean 'verbose'?")
    assert "'verbose'" in refused("verbose=true")


@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.max_steps=10", "trainer.logger=false", "model.task.cost=mean"],
        ["model.objective.constraints.new={at_most: 0.1, signal: lava}", "model.objective.reward.goal=1"],
        ["callbacks.multipliers=FixedWeights", "callbacks.multipliers.weights={anything: 1}"],
        # What can't be looked up is left to the import.
        ["callbacks.mine={class_path: my_module.Own, init_args: {x: 1}}"],
        ["model.policy={class_path: torch.nn.Linear, init_args: {in_features: 1}}"],
        ["trainer.logger.max_queue=1"],  # It takes **kwargs.
    ],
)
def test_what_is_right_passes(overrides: list[str]) -> None:
    check_keys(gridworld(*overrides))


@pytest.mark.parametrize(
    "class_path",
    [
        "lightning_cgrpo.ConstrainedGRPO",
        "lightning_cgrpo.Optimization",
        "lightning_cgrpo.callbacks.LagrangianCallback",
        "lightning.pytorch.trainer.trainer.Trainer",
        "torch.optim.AdamW",
    ],
)
def test_signatures_agree_with_those_of_imported_classes(class_path: str) -> None:
    module, _, name = class_path.rpartition(".")
    imported = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    signature = signature_of(class_path)
    assert signature is not None and not signature.open
    passed_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in imported.values())
    declared = [name for name, parameter in imported.items() if parameter.kind is not parameter.VAR_KEYWORD]
    assert list(signature.parameters)[: len(declared)] == declared
    assert len(signature.parameters) == len(declared) or passed_on


def test_arguments_that_a_constructor_passes_on() -> None:
    signature = signature_of("lightning_cgrpo.datamodules.GSM8KDataModule")
    assert signature is not None and not signature.open
    assert {"path", "val_prompts", "test_path", "seed"} < signature.parameters.keys()
    assert signature_of("lightning.pytorch.loggers.TensorBoardLogger").open


def test_annotated_dataclasses_are_followed() -> None:
    signature, objective = signature_of("lightning_cgrpo.ConstrainedGRPO"), signature_of("lightning_cgrpo.Objective")
    assert signature is not None and objective is not None
    assert signature.parameters["objective"].type == "lightning_cgrpo.objective.objective.Objective"
    assert signature.parameters["policy"].type is None
    assert objective.parameters["constraints"].values_type == "lightning_cgrpo.objective.constraint.Constraint"


@pytest.mark.parametrize("name", ["loss_type", "num_iterations", "output_dir", "reward_funcs", "save_steps"])
@pytest.mark.parametrize("where", ["", "model.", "trainer."])
def test_arguments_of_trl_point_to_ours(where: str, name: str) -> None:
    assert f"Try {NAMES_OF_TRL[name]}." in refused(f"{where}{name}=1")


def test_arguments_of_trl_are_those_of_the_page() -> None:
    """And what they point to begins with a key of a configuration."""
    page = Path("docs/coming_from_trl.md").read_text()
    for name, place in NAMES_OF_TRL.items():
        assert any(f"`{text}`" in page for text in (name, f"{name}*", f"{name.rpartition('_')[0]}_*")), name
        assert place.partition(".")[0].partition(" ")[0].partition("=")[0] in ROOT_KEYS, place
