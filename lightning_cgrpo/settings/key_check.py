"""Check of a configuration's keys against the signatures of its classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_cgrpo.core.errors import did_you_mean
from lightning_cgrpo.settings.configuration import CLASS_KEYS, Config, ConfigError, get, short_class
from lightning_cgrpo.settings.effects import class_name
from lightning_cgrpo.settings.signatures import Parameter, Signature, names_beside_missing, signature_of

TRAINER = "lightning.pytorch.trainer.trainer.Trainer"
REMOVED = {
    "DampedAscent.smoothing": "0.7",
    "FromScratch.seed": "the run's seed",
    "GDPO.eps": "1e-4",
    "MLPCritic.seed": "the run's seed",
    "ProjectedAscent.init": "0",
    "RewardModel.device": "the process's accelerator",
    "SoftmaxAdam.betas": "[0.9, 0.999]",
    "StallDetector.weight": "0.9",
    "VisionFromScratch.seed": "the run's seed",
}
"""The values at which former arguments of classes are fixed."""
NAMES_OF_TRL = {
    "num_generations": "model.group_size",
    "num_generations_eval": "model.eval_group_size",
    "num_iterations": "model.optimization.epochs",
    "entropy_coef": "model.optimization.entropy_weight",
    "loss_type": "model.optimization.aggregation (grpo: sequence_mean, dapo and bnpo: token_mean, dr_grpo: constant)",
    "epsilon_high": "model.optimization.clip_high",
    "delta": "model.optimization.clip_limit",
    "use_bias_correction_kl": "model.optimization.correct_kl",
    "importance_sampling_level": "model.optimization.sequence_ratio",
    "scale_rewards": "model.estimator (ScalarizedRewards, LeaveOneOut)",
    "reward_weights": "model.objective.reward={name: weight}",
    "reward_funcs": "model.task (FunctionTask) and model.objective",
    "mask_truncated_completions": "model.optimization.mask_truncated",
    "generation_batch_size": "data.prompts_per_update times model.group_size",
    "steps_per_generation": "data.prompts_per_update times model.group_size",
    "gradient_accumulation_steps": "model.optimization.micro_batch_size",
    "use_vllm": "model.sampler.engine=VLLMServer",
    "vllm_mode": "model.sampler.engine=VLLMServer",
    "peft_config": "model.policy.lora",
    "weight_decay": "model.optimizer.weight_decay",
    "optim": "model.optimizer",
    "lr_scheduler_type": "model.lr_scheduler",
    "warmup_steps": "model.lr_scheduler",
    "train_dataset": "data.path",
    "eval_dataset": "data.val_path",
    "output_dir": "trainer.default_root_dir, or trainer.logger",
    "run_name": "trainer.logger.name",
    "report_to": "trainer.logger",
    "logging_steps": "trainer.log_every_n_steps",
    "eval_steps": "trainer.val_check_interval",
    "eval_strategy": "trainer.val_check_interval",
    "per_device_eval_batch_size": "data.eval_prompts",
    "save_steps": "callbacks.checkpoints (Checkpoints)",
    "save_strategy": "callbacks.checkpoints (Checkpoints)",
    "save_total_limit": "callbacks.checkpoints (Checkpoints)",
    "resume_from_checkpoint": "ckpt_path=last",
    "bf16": "trainer.precision=bf16-mixed",
    "fp16": "trainer.precision",
    "log_completions": "callbacks with SampleAnswers(write=True)",
    "learning_rate": "model.optimizer.lr",
    "temperature": "model.policy.temperature",
    "beta": "model.optimization.kl_weight",
    "epsilon": "model.optimization.clip_low and .clip_high",
    "max_completion_length": "model.sampler.max_new_tokens",
    "per_device_train_batch_size": "data.prompts_per_update",
    "num_train_epochs": "trainer.max_epochs",
}
"""Arguments of TRL, and the keys that replace them; docs/coming_from_trl.md has all."""
ROOT_KEYS = ("seed_everything", "threads", "trainer", "model", "data", "callbacks", "ckpt_path", "weights_only")


def check_keys(config: Config, extra: tuple[str, ...] = ()) -> None:
    """Raise a `ConfigError` for an unknown key; `extra` are further top-level keys."""
    allowed = (*ROOT_KEYS, *extra)
    for key in config:
        if key not in allowed:
            hint = _hint_for_root_key(key, config) or _trl_hint(key) or did_you_mean(key, allowed)
            hint = hint or f" Known here: {', '.join(allowed)}."
            raise ConfigError(f"Unknown key '{key}'.{hint}")
    _check_numbers(config)
    # YAML reads key:value, without a space, as a text.
    for key in ("trainer", "model", "data", "callbacks"):
        value = config.get(key)
        text = value.get("class_path") if isinstance(value, Mapping) else value
        if isinstance(text, str) and ":" in text:
            raise ConfigError(f"Expected {key} to be settings, but got '{text}', try a space after the colon.")
    if isinstance(config.get("trainer"), Mapping):
        _check_arguments("trainer", config["trainer"], TRAINER)
        for key in ("max_steps", "max_epochs"):
            if config["trainer"].get(key) == 0:
                raise ConfigError(f"Expected trainer.{key} to be at least 1, or -1 for no limit, but got 0.")
    for key in ("model", "data", "callbacks"):
        _check_value(key, config.get(key), Parameter())


def _check_numbers(config: Config) -> None:
    """Refuse a seed or a number of threads out of its range. Values of environment variables are texts."""
    seed = config.get("seed_everything")
    if str(seed).lower() == "true":
        raise ConfigError("Expected seed_everything to be a number, but got true, try seed_everything: 1.")
    if seed not in (None, False) and not (str(seed).isdigit() and int(seed) < 2**32):
        raise ConfigError(f"Expected seed_everything to be from 0 to {2**32 - 1}, but got {seed}, try another seed.")
    threads = config.get("threads")
    if threads is not None and not (str(threads).isdigit() and int(threads) > 0):
        raise ConfigError(f"Expected threads to be a whole number of at least 1, but got {threads}, try threads: 1.")


def _hint_for_root_key(key: str, config: Config) -> str:
    """A hint for a top-level key that belongs to a section, or deeper; empty for other keys."""
    section = _section_of(key, config)
    if section is not None:
        return f" It belongs under {section}: ({section}.{key})."
    sections = {name: config.get(name) for name in ("model", "data", "callbacks")}
    return _hint_below(key, "", sections)


def _section_of(key: str, config: Config) -> str | None:
    """The section whose class takes an argument of this name, if any."""
    for section in ("model", "data", "trainer"):
        name = TRAINER if section == "trainer" else get(config, f"{section}.class_path") or config.get(section)
        signature = signature_of(str(name))
        if signature is not None and key in signature.parameters:
            return section
    return None


def _check_value(where: str, value: Any, parameter: Parameter) -> None:
    """Check the keys of a value and of all values inside.

    Args:
        where: dotted key of the value.
        parameter: the parameter that takes the value.
    """
    if isinstance(value, Mapping) and "class_path" in value:
        _check_class_settings(where, value)
    elif isinstance(value, Mapping) and parameter.type is not None:
        _check_arguments(where, value, parameter.type)
    elif parameter.type is not None and isinstance(value, (bool, int, float, list)):
        signature = signature_of(parameter.type)
        names = list(signature.parameters) if signature is not None else []
        example = "{}"
        if not isinstance(value, (bool, list)):
            first = names[0] if names else ""
            example = f"{{{first}: {value}}}"
        raise ConfigError(
            f"Expected {where} to be settings ({', '.join(names)}), but got {value}, try --{where}='{example}'."
        )
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check_value(f"{where}.{key}", item, Parameter(type=parameter.values_type))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _check_value(f"{where}[{number}]", item, Parameter())


def _check_class_settings(where: str, settings: Mapping[str, Any]) -> None:
    """Check a class, the keys beside it and its arguments."""
    class_path = str(settings["class_path"])
    _check_class(where, class_path)
    for key in settings:
        if key not in CLASS_KEYS:
            hint = did_you_mean(str(key), CLASS_KEYS) or " Arguments of the class belong under init_args."
            raise ConfigError(f"Unknown key '{key}' in {where}, beside class_path.{hint}")
    arguments = settings.get("init_args") or {}
    if isinstance(arguments, Mapping):
        _check_arguments(where, arguments, class_path)


def _check_arguments(where: str, arguments: Mapping[str, Any], class_path: str) -> None:
    """Check the arguments of a class, and all values inside."""
    signature = signature_of(class_path)
    if signature is None:
        return
    for key, value in arguments.items():
        if key not in signature.parameters and not signature.open:
            others = {name: part for name, part in arguments.items() if name != key}
            hint = (
                _removal_hint(class_path, key)
                or _hint_below(str(key), f"{where}.", others, signature)
                or _trl_hint(key)
                or did_you_mean(str(key), [*signature.parameters, *CLASS_KEYS])
                or f" It takes: {', '.join(signature.parameters) or 'nothing'}."
            )
            raise ConfigError(f"Unknown key '{key}' in {where} ({short_class(class_path)}).{hint}")
        _check_value(f"{where}.{key}", value, signature.parameters.get(key, Parameter()))


def _hint_below(key: str, where: str, arguments: Mapping[str, Any], signature: Signature | None = None) -> str:
    """A hint for a key that stands a level or more too high; empty for other keys.

    Args:
        where: dotted path of the arguments, with its dot.
        signature: signature of the class that takes the arguments.
    """
    # The declared types of all parameters, then the other arguments in the order of the settings.
    types: dict[str, str | None] = {}
    if signature is not None:
        types = {name: parameter.type for name, parameter in signature.parameters.items()}
    for name in arguments:
        types.setdefault(name, None)
    for name, path in types.items():
        value = arguments.get(name)
        inside: Mapping[str, Any] = {}
        if isinstance(value, str):
            path = value  # the name of a class
        elif isinstance(value, Mapping) and "class_path" in value:
            path = str(value["class_path"])
            inside = value.get("init_args") or {}
        elif isinstance(value, Mapping):
            inside = value
        inner = signature_of(path) if path is not None else None
        if inner is not None and key in inner.parameters:
            return f" It belongs under {where}{name} ({where}{name}.{key})."
        if inside or inner is not None:
            hint = _hint_below(key, f"{where}{name}.", inside, inner)
            if hint:
                return hint
    return ""


def _removal_hint(class_path: str, key: Any) -> str:
    """A hint for an argument that the class had before; empty for other keys."""
    fixed = REMOVED.get(f"{class_name(class_path)}.{key}")
    return "" if fixed is None else f" It is {fixed} now, and no setting: leave it out."


def _trl_hint(key: Any) -> str:
    """A hint for an argument of TRL; empty for other keys."""
    return f" Try {NAMES_OF_TRL[key]}." if key in NAMES_OF_TRL else ""


def _check_class(where: str, class_path: str) -> None:
    names = names_beside_missing(class_path)
    if names is not None:
        hint = did_you_mean(class_path.rpartition(".")[2], names)
        raise ConfigError(f"There is no class '{class_path}' for {where}.{hint}")
