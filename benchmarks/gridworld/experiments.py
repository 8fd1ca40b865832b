"""The gridworld's experiments: which configurations, with which seeds, for how long.

Where there are three seeds, all runs of the first come first: a part of a set is a whole set with fewer seeds.
"""

from __future__ import annotations

from benchmarks.runner.experiment import Run

ADVANTAGES, REWARDS = "scalarized_advantages", "scalarized_rewards"
ESTIMATORS: dict[str, tuple[str, ...]] = {ADVANTAGES: (), REWARDS: (REWARDS,)}
"""By name, the ablations that make them."""
LAVA_WEIGHTS = (0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1)
BATTERY_WEIGHTS = (0, 0.1)
CONTROLLERS = ("exponentiated_gradient", "pid", "nupi", "projected", "softmax_slow", "softmax_floor", "softmax_slack")
"""configs/ablations/controller_<name>.yaml"""


def _run(name: str, ablations: tuple[str, ...], overrides: tuple[str, ...], seed: int, updates: int) -> Run:
    files = ("configs/gridworld.yaml", *(f"configs/ablations/gridworld/{ablation}.yaml" for ablation in ablations))
    return Run(name, files, overrides, seed, updates)


def paper() -> list[Run]:
    """Constrained GRPO with both estimators at the paper's three settings of thresholds, five seeds each."""
    thresholds: dict[str, tuple[str, ...]] = {
        "lava_0.01_battery_0.01": (),
        "lava_0.01": ("lava_only",),
        "lava_0.01_battery_0.1": ("battery_0.1",),
    }
    return [
        _run(f"{estimator}_{setting}_seed{seed}", (*ablations, *extra), (), seed, 8000)
        for setting, extra in thresholds.items()
        for estimator, ablations in ESTIMATORS.items()
        for seed in range(5)
    ]


def sweep(name: str = "fixed", updates: int = 2000) -> list[Run]:
    """Fixed weights of lava and battery, the reward's being 1, with both estimators, three seeds each."""
    key = "--callbacks.multipliers.weights"
    return [
        _run(
            f"{name}_{estimator}_lava_{lava}_battery_{battery}_seed{seed}",
            ("fixed_weights", *ablations),
            (f"{key}.lava={lava}", f"{key}.battery={battery}"),
            seed,
            updates,
        )
        for seed in range(3)
        for battery in BATTERY_WEIGHTS
        for lava in LAVA_WEIGHTS
        for estimator, ablations in ESTIMATORS.items()
    ]


def controllers() -> list[Run]:
    """What else can move the multipliers, and the guards, three seeds each; softmax with Adam is in `paper`."""
    return [
        _run(f"controller_{name}_seed{seed}", (f"controller_{name}",), (), seed, 8000)
        for seed in range(3)
        for name in CONTROLLERS
    ]


def choices() -> list[Run]:
    """What the paper leaves open: what a rate counts, and what enters the advantage; the chosen pair is in `paper`."""
    return [
        _run(
            f"choice_{estimator}_rate_{rate}_cost_{cost}_seed{seed}",
            ablations,
            (f"--model.init_args.task.init_args.rate={rate}", f"--model.init_args.task.init_args.cost={cost}"),
            seed,
            8000,
        )
        for seed in range(3)
        for rate in ("steps", "episodes")
        for cost in ("sum", "mean", "indicator")
        if (rate, cost) != ("steps", "sum")
        for estimator, ablations in ESTIMATORS.items()
    ]


def full_sweep() -> list[Run]:
    """The sweep at the length of the other runs."""
    return sweep("fixed_8000", 8000)


SETS = {
    "paper": paper,
    "sweep": sweep,
    "controllers": controllers,
    "choices": choices,
    "full_sweep": full_sweep,
}
STANDARD = ("paper", "sweep")
