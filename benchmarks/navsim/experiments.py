"""The driving comparison: which configurations, with which seeds, for how long."""

from __future__ import annotations

from benchmarks.runner.experiment import Run

UPDATES = 150
METHODS = {
    "cgrpo_scalarized_advantages": (),
    "cgrpo_scalarized_rewards": ("scalarized_rewards",),
    "grpo_epdms": ("grpo_epdms",),
    "equal_weights_scalarized_advantages": ("equal_weights",),
    "equal_weights_scalarized_rewards": ("equal_weights_scalarized_rewards",),
    "informed_weights_scalarized_advantages": ("informed_weights",),
    "informed_weights_scalarized_rewards": ("informed_weights_scalarized_rewards",),
}
"""By name, the files of configs/ablations/navsim that make them."""


def paper() -> list[Run]:
    """The rows of the paper's table of NAVSIM that have no critic, three seeds."""
    return [
        Run(
            f"{name}_seed{seed}",
            ("configs/navsim.yaml", *(f"configs/ablations/navsim/{ablation}.yaml" for ablation in ablations)),
            ("--callbacks.scores.references=false",),
            seed,
            UPDATES,
        )
        for seed in range(3)
        for name, ablations in METHODS.items()
    ]


SETS = {"paper": paper}
