"""Claims about the gridworld."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from benchmarks.claims_of_the_paper.claim import Cell, Claim, Comparison, NotRun, Section, Spread, compare

THRESHOLDS = {
    "(0.01, 0.01)": "lava_0.01_battery_0.01",
    "lava alone": "lava_0.01",
    "(0.01, 0.1)": "lava_0.01_battery_0.1",
}
WEIGHTS = ("0.01", "0.05", "0.1", "0.2", "0.3", "0.5")
"""Fixed weights of lava, up to which the paper's two methods differ."""


def gridworld() -> Section:
    folder = "gridworld/paper"
    pairs = {
        name: (f"{folder}/scalarized_advantages_{of}", f"{folder}/scalarized_rewards_{of}")
        for name, of in THRESHOLDS.items()
    }
    advantages, rewards = pairs["(0.01, 0.01)"]
    ours = "gridworld/claims/scalarized_advantages", "gridworld/claims/scalarized_rewards"
    used_battery = "gridworld/claims/battery/scalarized_{}_battery_0.1"
    ours_battery = used_battery.format("advantages"), used_battery.format("rewards")
    noise = "noise of lava's effective weight"
    swaps = "share of updates in which lava outweighs goal"
    vanishing = (
        compare("reward's multiplier minus 0.95", rewards, 0.95, "multiplier/reward"),
        compare("lava's effective weight minus 0.4", rewards, 0.4, "effective_weight/lava"),
    )
    return Section(
        "Gridworld",
        "The paper's own gridworld. Differences are scalarized advantages minus scalarized rewards, unless a cell\n"
        "says otherwise. With fixed weights of lava, policies are tested, without battery unless said.",
        "the paper's method: each group's scale, softmax dual",
        "this package's default: pooled scale, DampedAscent",
        [
            Claim(
                "Scalarized advantages reach more goals",
                tuple(compare(name, *pair, "reward/mean") for name, pair in pairs.items()),
                (
                    compare("(0.01, 0.01)", *ours, "reward/mean"),
                    compare("(0.01, 0.1)", *ours_battery, "reward/mean"),
                ),
            ),
            Claim(
                "They have a higher lava rate, up to its threshold; scalarized rewards stay below",
                tuple(compare(name, *pair, "rate/lava") for name, pair in pairs.items()),
                (
                    compare("(0.01, 0.01)", *ours, "rate/lava"),
                    compare("(0.01, 0.1)", *ours_battery, "rate/lava"),
                    compare("lava rate minus 0.01", "gridworld/estimators/pooled", 0.01, "rate/lava", "same", 0.002),
                ),
            ),
            Claim(
                "A threshold of 0.1 of battery is used",
                (compare("battery rate", *pairs["(0.01, 0.1)"], "rate/battery"),),
                (compare("battery rate", *ours_battery, "rate/battery"),),
            ),
            Claim(
                "Training is more stable",
                tuple(Spread(name, pair[:1], pair[1:], "reward/mean") for name, pair in pairs.items()),
                (
                    Spread("(0.01, 0.01)", ours[:1], ours[1:], "reward/mean"),
                    Spread("(0.01, 0.1)", ours_battery[:1], ours_battery[1:], "reward/mean"),
                ),
            ),
            Claim("Under scalarized rewards, effective weights stay large while multipliers vanish", vanishing),
            Claim(
                "Under scalarized rewards, effective weights are noisier",
                (compare(f"{noise}, rewards minus advantages", rewards, advantages, noise),),
            ),
            Claim("Under scalarized rewards, the order of goal and lava swaps", (compare(swaps, rewards, 0.0, swaps),)),
            *fixed_weights(),
        ],
    )


def fixed_weights() -> Iterator[Claim]:
    """Claims about fixed weights of lava and battery, for advantages of either scale ("advantages", "pooled")."""
    pooled = NotRun(
        "claims_gridworld_weights.yaml: fixed weights with the pooled scale, three seeds",
        "python -m lightning_cgrpo study configs/studies/claims_gridworld_weights.yaml",
        85,
    )

    def at_each_weight(measure: str, scale: str, key: str) -> Cell:
        return tuple(
            compare(f"{measure} at {weight}", swept(scale, weight), swept("rewards", weight), key) for weight in WEIGHTS
        )

    def at_all_weights(method: str) -> tuple[str, ...]:
        pairs = product((*WEIGHTS, "0.7", "1"), ("0", "0.1"))
        return tuple(swept(method, lava, battery) for lava, battery in pairs)

    def with_battery(scale: str) -> Cell:
        return tuple(
            compare(f"lava rate at {weight}", swept(scale, weight, "0.1"), swept(scale, weight), "test/rate/lava")
            for weight in WEIGHTS
        )

    def goals(scale: str) -> Cell:
        measure = "goals, mean over 16 pairs of weights"
        return (Comparison(measure, at_all_weights(scale), at_all_weights("rewards"), "test/reward/mean"),)

    def goals_spread(scale: str) -> Cell:
        return (Spread("goals", at_all_weights(scale), at_all_weights("rewards"), "test/reward/mean"),)

    yield Claim(
        "Fixed weights: scalarized rewards suppress lava at every weight",
        at_each_weight("lava rate", "advantages", "test/rate/lava"),
        (pooled,),
    )
    yield Claim(
        "Fixed weights: more goals with scalarized advantages, over all weights", goals("advantages"), (pooled,)
    )
    yield Claim("… with smaller error bars", goals_spread("advantages"), (pooled,))
    yield Claim(
        "… at each weight up to 0.5",
        at_each_weight("goals", "advantages", "test/reward/mean"),
        (pooled,),
    )
    yield Claim(
        "Fixed weights: a battery weight of 0.1, instead of 0, relaxes lava under scalarized advantages",
        with_battery("advantages"),
        (pooled,),
    )
    battery = tuple(swept("rewards", weight, "0.1") for weight in WEIGHTS)
    none = tuple(swept("rewards", weight) for weight in WEIGHTS)
    yield Claim(
        "… and leaves lava as it is under scalarized rewards",
        (Comparison("lava rate, mean over weights", battery, none, "test/rate/lava", "same", 0.002),),
    )


def swept(method: str, lava: str, battery: str = "0") -> str:
    """Runs at fixed weights: scalarized "advantages" or "rewards" with each group's scale, or "pooled" advantages."""
    folder = "gridworld/weights/pooled" if method == "pooled" else f"gridworld/sweep/scalarized_{method}"
    return f"{folder}_lava_{lava}_battery_{battery}"
