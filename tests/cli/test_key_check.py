"""Misspelled keys are answered with a suggestion, and before anything heavy is imported."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_cgrpo.cli import configuration
from lightning_cgrpo.cli.configuration import DEFAULTS, PACKAGED, Config, ConfigError, file_layer, override
from lightning_cgrpo.cli.key_check import check_keys, signature_of

GRIDWORLD = "configs/gridworld.yaml"
SHIPPED = sorted(
    {*PACKAGED.resolve().rglob("*.yaml")} - {DEFAULTS.resolve(), *PACKAGED.resolve().glob("studies/*.yaml")}
)


def build(files: list[str], *overrides: tuple[str, str]) -> Config:
    layers = [file_layer(name) for name in (str(DEFAULTS), *files)]
    return configuration.build([*layers, *(override(*pair) for pair in overrides)])


def gridworld(*overrides: tuple[str, str]) -> Config:
    return build([GRIDWORLD], *overrides)


def refused(*overrides: tuple[str, str], extra: tuple[str, ...] = ()) -> str:
    with pytest.raises(ConfigError) as caught:
        check_keys(gridworld(*overrides), extra)
    assert "\n" not in str(caught.value)
    return str(caught.value)


TYPOS = [
    ("trainr.max_steps", "trainr", "trainer"),
    ("seed_everythin", "seed_everythin", "seed_everything"),
    ("callback.samples", "callback", "callbacks"),
    ("trainer.max_step", "max_step", "max_steps"),
    ("model.group_siz", "group_siz", "group_size"),
    ("model.init_args.group_siz", "group_siz", "group_size"),
    ("model.init_arg.group_size", "init_arg", "init_args"),
    ("model.class_pat", "class_pat", "class_path"),
    ("model.objective.constrains", "constrains", "constraints"),
    ("model.objective.constraints.lava.at_mots", "at_mots", "at_most"),
    ("model.objective.constraints.new.at_leats", "at_leats", "at_least"),
    ("model.optimization.minibatch", "minibatch", "minibatch_size"),
    ("model.optimizer.lrr", "lrr", "lr"),
    ("model.policy.hiden", "hiden", "hidden"),
    ("model.sampler.environment.max_stesp", "max_stesp", "max_steps"),
    ("model.task.costs", "costs", "cost"),
    ("data.prompts_per_updat", "prompts_per_updat", "prompts_per_update"),
    ("callbacks.multipliers.every_n_update", "every_n_update", "every_n_updates"),
    ("callbacks.multipliers.controller.lrr", "lrr", "lr"),
    ("callbacks.progress.refresh", "refresh", "refresh_rate"),
    ("callbacks.checkpoints.every_n_train_step", "every_n_train_step", "every_n_train_steps"),
]


@pytest.mark.parametrize(("key", "typo", "meant"), TYPOS, ids=lambda value: str(value))
def test_typo(key: str, typo: str, meant: str) -> None:
    message = refused((key, "1"))
    assert message.startswith(f"Unknown key '{typo}'") and message.endswith(f"Did you mean '{meant}'?")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [("callbacks.multipliers", "FixedWeights"), ("callbacks.multipliers.weigths", "{reward: 1}")],
            "Unknown key 'weigths' in callbacks.multipliers (FixedWeights). Did you mean 'weights'?",
        ),
        (
            [("callbacks.multipliers.controller", "PID"), ("callbacks.multipliers.controller.kpp", "1")],
            "Unknown key 'kpp' in callbacks.multipliers.controller (PID). Did you mean 'kp'?",
        ),
        (
            [("callbacks.multipliers.controller.class_path", "lightning_cgrpo.multipliers.PIDD")],
            "There is no class 'lightning_cgrpo.multipliers.PIDD' for callbacks.multipliers.controller. "
            "Did you mean 'PID'?",
        ),
        (
            [("model.estimator", "lightning_cgrpo.GDP")],
            "There is no class 'lightning_cgrpo.GDP' for model.estimator. Did you mean 'GDPO'?",
        ),
        (
            [("model.estimator", "lightning_cgrpo.ScalarizedRewards"), ("model.estimator.eps", "1")],
            "Unknown key 'eps' in model.estimator (ScalarizedRewards). It takes: scale.",
        ),
        (
            [("model.lr_scheduler", "torch.optim.lr_scheduler.LinearLR"), ("model.lr_scheduler.start_facto", "1")],
            "Unknown key 'start_facto' in model.lr_scheduler (LinearLR). Did you mean 'start_factor'?",
        ),
        (
            [("callbacks.multipliers.bounds", "WeightBounds"), ("callbacks.multipliers.bounds.flor", "0.1")],
            "Unknown key 'flor' in callbacks.multipliers.bounds (WeightBounds). Did you mean 'floor'?",
        ),
        (
            [("callbacks.mine", "{class_path: my.Own, init_arg: {}}")],
            "Unknown key 'init_arg' in callbacks.mine, beside class_path. Did you mean 'init_args'?",
        ),
        (
            [("callbacks.mine", "{class_path: my.Own, weights: {}}")],
            "Unknown key 'weights' in callbacks.mine, beside class_path. Arguments of the class belong under "
            "init_args.",
        ),
    ],
)
def test_classes(overrides: list[tuple[str, str]], message: str) -> None:
    assert refused(*overrides) == message


@pytest.mark.parametrize("path", ["Argoverse2", "lightning_cgrpo.CoVLA", "lightning_cgrpo.scenes.covla.CoVLA"])
def test_moved_classes_name_their_new_path(path: str) -> None:
    name = path.rpartition(".")[2]
    with pytest.raises(ConfigError, match=f"examples.scene_sources.{name.lower()}.{name}"):
        check_keys({"data": {"class_path": "NavsimDataModule", "init_args": {"scenes": {"class_path": path}}}})


def test_without_anything_similar_the_keys_are_listed() -> None:
    assert refused(("xyzzy", "1")) == (
        "Unknown key 'xyzzy'. Known here: seed_everything, threads, trainer, model, data, callbacks, ckpt_path, "
        "weights_only."
    )
    message = "Unknown key 'xyzzy' in callbacks.multipliers.controller (SoftmaxAdam). It takes: lr, init, betas."
    assert refused(("callbacks.multipliers.controller.xyzzy", "1")) == message


def test_keys_of_the_command() -> None:
    check_keys(gridworld(("verbose", "true")), ("verbose",))
    assert refused(("verbos", "true"), extra=("verbose",)).endswith("Did you mean 'verbose'?")
    assert "'verbose'" in refused(("verbose", "true"))


@pytest.mark.parametrize(
    "overrides",
    [
        [("trainer.max_steps", "10"), ("trainer.logger", "false"), ("model.task.cost", "mean")],
        [("model.objective.constraints.new", "{at_most: 0.1, signal: lava}"), ("model.objective.reward.goal", "1")],
        [("callbacks.multipliers", "FixedWeights"), ("callbacks.multipliers.weights", "{anything: 1}")],
        [("callbacks.multipliers.bounds", "WeightBounds"), ("callbacks.multipliers.bounds.floor.lava", "0.1")],
        [("callbacks.samples", "null"), ("callbacks.multipliers", "null")],
        # What can't be looked up is left to the import.
        [("callbacks.mine", "{class_path: my_module.Own, init_args: {x: 1}}")],
        [("callbacks.mine", "{class_path: Own, init_args: {x: 1}}")],
        [("model.policy", "{class_path: torch.nn.Linear, init_args: {in_features: 1}}")],
        # It takes **kwargs.
        [("trainer.logger.max_queue", "1")],
    ],
)
def test_what_is_right_passes(overrides: list[tuple[str, str]]) -> None:
    check_keys(gridworld(*overrides))


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: str(file.relative_to(PACKAGED.resolve())))
def test_shipped_configurations(file: Path) -> None:
    """Complete ones alone, others on the one that they name in a command, or the gridworld's."""
    text = file.read_text()
    if re.search(r"^(data|base):", text, re.MULTILINE):
        check_keys(build([str(file)]))
        return
    named = re.search(r"-c (configs/[\w./]+\.yaml)", text)
    base = named[1] if named else GRIDWORLD
    stacked = build([base, str(file)])
    check_keys(stacked)
    assert stacked != build([base]), "Expected the overrides to change something."


class TestSignatures:
    def test_annotated_dataclasses_are_followed(self) -> None:
        signature = signature_of("lightning_cgrpo.ConstrainedGRPO")
        assert signature is not None and not signature.open
        assert signature.parameters["objective"].type == "lightning_cgrpo.objective.objective.Objective"
        assert signature.parameters["optimization"].type == "lightning_cgrpo.grpo.minibatches.Optimization"
        assert signature.parameters["policy"].type is None
        objective = signature_of("lightning_cgrpo.Objective")
        assert objective is not None and list(objective.parameters) == ["reward", "constraints", "signals"]
        assert objective.parameters["constraints"].values_type == "lightning_cgrpo.objective.constraint.Constraint"

    @pytest.mark.parametrize(
        "class_path",
        [
            "lightning_cgrpo.ConstrainedGRPO",
            "lightning_cgrpo.CategoricalMLP",
            "lightning_cgrpo.GDPO",
            "lightning_cgrpo.ScalarizedAdvantages",
            "lightning_cgrpo.Optimization",
            "lightning_cgrpo.datamodules.GridworldDataModule",
            "lightning_cgrpo.callbacks.LagrangianCallback",
            "lightning_cgrpo.callbacks.EvaluationTable",
            "lightning_cgrpo.multipliers.SoftmaxAdam",
            "lightning_cgrpo.tasks.gridworld.GridworldTask",
            "lightning.pytorch.callbacks.ModelCheckpoint",
            "lightning.pytorch.trainer.trainer.Trainer",
            "torch.optim.AdamW",
        ],
    )
    def test_agrees_with_the_imported_class(self, class_path: str) -> None:
        import importlib
        import inspect

        module, _, name = class_path.rpartition(".")
        imported = inspect.signature(getattr(importlib.import_module(module), name)).parameters
        signature = signature_of(class_path)
        assert signature is not None and not signature.open
        passed_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in imported.values())
        declared = [name for name, parameter in imported.items() if parameter.kind is not parameter.VAR_KEYWORD]
        assert list(signature.parameters)[: len(declared)] == declared
        assert len(signature.parameters) == len(declared) or passed_on

    def test_arguments_that_a_constructor_passes_on(self) -> None:
        signature = signature_of("lightning_cgrpo.datamodules.GSM8KDataModule")
        assert signature is not None and not signature.open
        assert {"path", "val_prompts", "test_path", "seed"} < signature.parameters.keys()
        assert signature_of("lightning.pytorch.loggers.TensorBoardLogger").open

    @pytest.mark.parametrize("class_path", ["", "Nothing", "nothing.Here", "lightning_cgrpo.Nothing", "torch.Nothing"])
    def test_unknown(self, class_path: str) -> None:
        assert signature_of(class_path) is None


def test_no_heavy_import_is_needed() -> None:
    """A typo at the command line is answered by a process that imported neither PyTorch nor Lightning."""
    script = f"""
import sys
from lightning_cgrpo.__main__ import main
from lightning_cgrpo.errors import UserError
for key in {[key for key, _, _ in TYPOS]!r}:
    try:
        main(["fit", "-c", "{GRIDWORLD}", f"--{{key}}=1"])
    except UserError as error:
        assert "Did you mean" in str(error), error
    else:
        raise AssertionError(key)
heavy = {{"torch", "lightning", "transformers", "jsonargparse", "numpy"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
