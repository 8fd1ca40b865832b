"""The comparison on generated word problems: which configurations, with which seeds, for how long."""

from __future__ import annotations

from benchmarks.runner.experiment import Run

UPDATES = 300
METHODS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "scalarized_advantages": ((), ()),
    "scalarized_rewards": (("scalarized_rewards",), ()),
    "gdpo": (("gdpo",), ()),
    "fixed_weights": (("fixed_weights",), ()),
    # The rate of the dual ascent that the paper gives for GSM8K.
    "dual_rate_1e-4": ((), ("--callbacks.multipliers.controller.lr=1e-4", "--callbacks.multipliers.bounds=null")),
}
"""By name, the ablations of configs/ablations/gsm8k that make them, and overrides."""


def paper() -> list[Run]:
    """Constrained GRPO with both estimators, and equal fixed weights with and without GDPO's whitening, three seeds."""
    return [
        Run(
            f"{name}_seed{seed}",
            ("configs/gsm8k.yaml", *(f"configs/ablations/gsm8k/{ablation}.yaml" for ablation in ablations)),
            overrides,
            seed,
            UPDATES,
        )
        for seed in range(3)
        for name, (ablations, overrides) in METHODS.items()
    ]


SETS = {"paper": paper}
