"""The section ``lightning_cgrpo`` of verl's configuration, and what it can't stand beside."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from lightning_cgrpo import multipliers
from lightning_cgrpo.core.errors import UserError, did_you_mean
from lightning_cgrpo.multipliers.controller import Controller
from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.objective.objective import Objective

SECTION = "lightning_cgrpo"
ESTIMATOR = "constrained"
"""Value of verl's ``algorithm.adv_estimator``."""
KEYS = ("objective", "controller", "scale")


@dataclass(frozen=True)
class Settings:
    """The section's declarations.

    Args:
        objective: reward and constraints, on signals that verl's reward function returns.
        controller: of the multipliers; None is `DampedAscent`.
        scale: of `ScalarizedAdvantages`.
    """

    objective: Objective
    controller: Controller | None = None
    scale: Literal["pooled", "group"] = "pooled"


def settings_of(config: Any) -> Settings | None:
    """The section of verl's whole configuration; None if verl trains by another estimator.

    Raises:
        UserError: a key or a value is unknown, the section has no effect, or a setting of verl asks for another method.
    """
    section = config.get(SECTION)
    estimator = config.algorithm.adv_estimator
    if estimator != ESTIMATOR:
        if section is not None:
            raise UserError(
                f"Expected algorithm.adv_estimator={ESTIMATOR} beside the section {SECTION}, which has no effect "
                f"otherwise, but got {estimator}, try algorithm.adv_estimator={ESTIMATOR}."
            )
        return None
    check_verl(config)
    return settings_of_section(plain_section(section))


def check_verl(config: Any) -> None:
    """Refuse settings of verl with which the advantages or the rates would be others."""
    algorithm = config.algorithm
    rollout = config.actor_rollout_ref.rollout
    filters = algorithm.get("filter_groups") or {}
    # By the setting that the method needs: whether verl has another, why the method needs it, and what to try.
    refusals = {
        "algorithm.use_kl_in_reward=false": (
            algorithm.get("use_kl_in_reward", False),
            "the reward is a signal of its own",
            "actor_rollout_ref.actor.use_kl_loss=true",
        ),
        "algorithm.filter_groups.enable=false": (
            filters.get("enable", False),
            "rates are of all answers, and filtered groups are thrown away",
            "removing it",
        ),
        "algorithm.norm_adv_by_std_in_grpo=true": (
            not algorithm.get("norm_adv_by_std_in_grpo", True),
            "each signal is scaled by itself",
            f"removing it, or {SECTION}.scale",
        ),
    }
    for wanted, (refused, reason, remedy) in refusals.items():
        if refused:
            key, _, value = wanted.partition("=")
            other = "true" if value == "false" else "false"
            raise UserError(f"Expected {wanted}, because {reason}, but got {key}={other}, try {remedy}.")
    if rollout.n < 2:
        raise UserError(
            f"Expected actor_rollout_ref.rollout.n of at least 2, because answers to a prompt are compared, but got "
            f"{rollout.n}, try 8."
        )


def plain_section(section: Any) -> Mapping[str, Any]:
    """The section in plain Python, read from a file if it is a path."""
    from omegaconf import OmegaConf

    if section is None:
        raise UserError(
            f"Expected a section {SECTION} of verl's configuration with an objective, but got none, try "
            f"+{SECTION}=objective.yaml."
        )
    if isinstance(section, str):
        if not Path(section).is_file():
            raise UserError(f"Expected {SECTION} to be a section or a file of YAML, but there is no file {section}.")
        section = OmegaConf.load(section)
    if OmegaConf.is_config(section):
        section = OmegaConf.to_container(section, resolve=True)
    if not isinstance(section, Mapping):
        raise UserError(f"Expected {SECTION} to have the key objective, but got {section}.")
    return section  # keys that are no texts are unknown keys


def settings_of_section(section: Mapping[str, Any]) -> Settings:
    """The settings of a section in plain Python."""
    expect_keys(SECTION, section, KEYS)
    objective = section.get("objective")
    if not isinstance(objective, Mapping):
        raise UserError(
            f"Expected {SECTION}.objective to be like {{reward: score, constraints: {{correct: {{at_least: 0.9}}}}}}, "
            f"but got {objective}."
        )
    expect_keys(f"{SECTION}.objective", objective, ("reward", "constraints", "look"))
    constraints = objective.get("constraints")
    if isinstance(constraints, Mapping):
        constraint_keys = [field.name for field in fields(Constraint)]
        for name, values in constraints.items():
            if isinstance(values, Mapping):
                expect_keys(f"constraint '{name}'", values, constraint_keys)
    scale = section.get("scale", "pooled")
    if scale not in ("pooled", "group"):
        raise UserError(f"Expected {SECTION}.scale to be pooled or group, but got {scale}.")
    return Settings(Objective.declared(objective), controller_of(section.get("controller")), scale)


def controller_of(value: Any) -> Controller | None:
    """The controller of ``SoftmaxAdam``, or of ``{class_path: SoftmaxAdam, init_args: {lr: 0.02}}``."""
    if value is None:
        return None
    declaration: Any = {"class_path": value} if isinstance(value, str) else value
    if not isinstance(declaration, Mapping) or "class_path" not in declaration:
        raise UserError(f"Expected {SECTION}.controller to be a class, like DampedAscent, but got {value}.")
    expect_keys(f"{SECTION}.controller", declaration, ("class_path", "init_args"))
    # A name without a module is one of this package's controllers.
    path = str(declaration["class_path"])
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name) if module_name else multipliers
        controller_class = getattr(module, name)
    except (ImportError, AttributeError):
        hint = did_you_mean(name, multipliers.__all__)
        raise UserError(f"Expected {SECTION}.controller to be a class, but there is no {path}.{hint}") from None
    if not (isinstance(controller_class, type) and issubclass(controller_class, Controller)):
        raise UserError(f"Expected {SECTION}.controller to be a Controller, but got {path}.")
    try:
        return controller_class(**declaration.get("init_args") or {})
    except (TypeError, ValueError) as error:
        raise UserError(f"Expected {SECTION}.controller to be made from its init_args, but {error}") from None


def expect_keys(name: str, values: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse a key that nothing reads."""
    known = list(known)
    for key in values:
        if key not in known:
            hint = did_you_mean(str(key), known)
            raise UserError(f"Expected {name} to have keys of {', '.join(known)}, but got '{key}'.{hint}")
