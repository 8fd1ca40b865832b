"""The driving comparison: which configurations, with which seeds, for how long."""

from __future__ import annotations

from benchmarks.runner.experiment import Run

UPDATES = 150
STRICT = tuple(f"--model.objective.constraints.{name}.at_least=0.93" for name in ("NC", "DAC", "DDC", "TLC"))
"""A little more than the model reaches: methods are compared at their limits."""
METHODS = {
    "cgrpo_as_shipped": ((), ()),
    "cgrpo_scalarized_advantages": ((), STRICT),
    "cgrpo_scalarized_rewards": (("scalarized_rewards",), STRICT),
    "grpo_epdms": (("grpo_epdms",), STRICT),
    "equal_weights_scalarized_advantages": (("equal_weights",), STRICT),
    "equal_weights_scalarized_rewards": (("equal_weights_scalarized_rewards",), STRICT),
    "informed_weights_scalarized_advantages": (("informed_weights",), STRICT),
    "informed_weights_scalarized_rewards": (("informed_weights_scalarized_rewards",), STRICT),
}
"""By name, the files of configs/ablations/navsim that make them, and settings on top of them."""


def paper() -> list[Run]:
    """The rows of the paper's table of NAVSIM that have no critic, three seeds."""
    return [
        Run(
            f"{name}_seed{seed}",
            ("configs/navsim.yaml", *(f"configs/ablations/navsim/{ablation}.yaml" for ablation in ablations)),
            (*settings, "--callbacks.scores.references=false"),
            seed,
            UPDATES,
        )
        for seed in range(3)
        for name, (ablations, settings) in METHODS.items()
    ]


SETS = {"paper": paper}
