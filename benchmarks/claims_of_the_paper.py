"""What the paper claims, and which committed runs test it, with the paper's method and with this package's default."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Literal

COMPARABLE = 0.02
"""Largest difference of rates and scores that counts as comparable."""


@dataclass(frozen=True)
class Comparison:
    """A difference that a claim expects to have a sign, or to be small.

    Args:
        measure: words.
        methods: folders and names of runs, such as ``gsm8k/paper/gdpo``; several are averaged by seed.
        others: what is subtracted, one for each method: a method, or a number.
        key: see `benchmarks.claims.values`.
        expected: "same" is a difference below `margin`, to either side.
        other_key: of the others, by default `key`.
    """

    measure: str
    methods: tuple[str, ...]
    others: tuple[str | float, ...]
    key: str
    expected: Literal["more", "less", "same"] = "more"
    margin: float = COMPARABLE
    other_key: str | None = None


@dataclass(frozen=True)
class Spread:
    """The claim that a measure of the methods varies less between seeds than the others'.

    Args:
        key: of one method's series, or ``test/...`` of several methods' tests.
    """

    measure: str
    methods: tuple[str, ...]
    others: tuple[str, ...]
    key: str


@dataclass(frozen=True)
class NotRun:
    """Runs that would decide a claim, and their CPU minutes."""

    what: str
    command: str
    minutes: int


Cell = tuple[Comparison | Spread | NotRun, ...]
"""Tests of one method; empty if the claim says nothing of it."""


@dataclass(frozen=True)
class Claim:
    """A claim, with the tests of the paper's method and of this package's default."""

    text: str
    paper: Cell = ()
    default: Cell = ()

    @property
    def cells(self) -> tuple[Cell, Cell]:
        return self.paper, self.default


@dataclass(frozen=True)
class Section:
    """Claims about one problem; `paper` and `default` name the two methods' settings."""

    title: str
    text: str
    paper: str
    default: str
    claims: list[Claim] = field(hash=False)


def sections() -> Iterator[Section]:
    yield gridworld()
    yield driving()
    yield word_problems()


def one(
    measure: str,
    method: str,
    other: str | float,
    key: str,
    expected: Literal["more", "less", "same"] = "more",
    margin: float = COMPARABLE,
) -> Comparison:
    return Comparison(measure, (method,), (other,), key, expected, margin)


STUDY = "python -m lightning_cgrpo study configs/studies"

# --- the gridworld

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
    noise, swaps = "noise of lava's effective weight", "share of updates in which lava outweighs goal"
    vanishing = (
        one("reward's multiplier minus 0.95", rewards, 0.95, "multiplier/reward"),
        one("lava's effective weight minus 0.4", rewards, 0.4, "effective_weight/lava"),
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
                tuple(one(name, *pair, "reward/mean") for name, pair in pairs.items()),
                (
                    one("(0.01, 0.01)", *ours, "reward/mean"),
                    one("(0.01, 0.1)", *ours_battery, "reward/mean"),
                ),
            ),
            Claim(
                "They have a higher lava rate, up to its threshold; scalarized rewards stay below",
                tuple(one(name, *pair, "rate/lava") for name, pair in pairs.items()),
                (
                    one("(0.01, 0.01)", *ours, "rate/lava"),
                    one("(0.01, 0.1)", *ours_battery, "rate/lava"),
                    one("lava rate minus 0.01", "gridworld/estimators/pooled", 0.01, "rate/lava", "same", 0.002),
                ),
            ),
            Claim(
                "A threshold of 0.1 of battery is used",
                (one("battery rate", *pairs["(0.01, 0.1)"], "rate/battery"),),
                (one("battery rate", *ours_battery, "rate/battery"),),
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
                (one(f"{noise}, rewards minus advantages", rewards, advantages, noise),),
            ),
            Claim("Under scalarized rewards, the order of goal and lava swaps", (one(swaps, rewards, 0.0, swaps),)),
            *fixed_weights(),
        ],
    )


def fixed_weights() -> Iterator[Claim]:
    """Claims about fixed weights of lava and battery, for advantages of either scale ("advantages", "pooled")."""
    pooled = NotRun(
        "claims_gridworld_weights.yaml: fixed weights with the pooled scale, three seeds",
        f"{STUDY}/claims_gridworld_weights.yaml",
        85,
    )

    def at_each_weight(measure: str, scale: str, key: str) -> Cell:
        return tuple(
            one(f"{measure} at {weight}", swept(scale, weight), swept("rewards", weight), key) for weight in WEIGHTS
        )

    def at_all_weights(method: str) -> tuple[str, ...]:
        pairs = product((*WEIGHTS, "0.7", "1"), ("0", "0.1"))
        return tuple(swept(method, lava, battery) for lava, battery in pairs)

    def with_battery(scale: str) -> Cell:
        return tuple(
            one(f"lava rate at {weight}", swept(scale, weight, "0.1"), swept(scale, weight), "test/rate/lava")
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


# --- driving

START_FILE = Path(__file__).parents[1] / "docs/results/navsim/start.json"
START = {
    stage: json.loads(START_FILE.read_text())["drivers"]["policy"][stage]["EPDMS"] for stage in ("stage_one", "both")
}
"""EPDMS before training."""
START_BEFORE = {"stage_one": 0.861, "both": 0.663}
"""The same on the 200 scenes of before."""
STAGES = {"first stage": "stage_one", "both stages": "both"}
RATES = ("NC", "DAC", "DDC")


def driving() -> Section:
    before, methods, main = "navsim/before", "navsim/methods", "navsim/main"
    theirs, ours = "navsim/duals/softmax_adam", f"{main}/cgrpo_pooled_scale"
    lagrangian = f"{methods}/cgrpo_scalarized_rewards"
    equal, ppo = "navsim/claims/equal_weights_group_scale", "navsim/claims/ppo_epdms"

    def scores(method: str, other: str, expected: Literal["more", "less", "same"] = "more") -> Cell:
        return tuple(one(words, method, other, f"{stage}/EPDMS", expected) for words, stage in STAGES.items())

    def gains(method: str, starts: dict[str, float], expected: Literal["more", "less"] = "more") -> Cell:
        return tuple(one(words, method, starts[stage], f"{stage}/EPDMS", expected) for words, stage in STAGES.items())

    return Section(
        "Driving",
        "Official scores (EPDMS), three seeds. The paper's method ran with the configuration used until November 25,\n"
        "2026 ([rows of before](results/navsim/README.md#the-rows-of-before)): thresholds of 0.95, 200 test scenes\n"
        "(`results/navsim/before/scores.json` is commit c77033a's). Constrained GRPO has the softmax dual there;\n"
        "PPO-Lagrangian, and both sides of the first row, have the default dual of then. The default ran with today's\n"
        "three rates and 1,000 scenes. In rows about rates, the first column has today's configuration, with each\n"
        "group's scale and the default dual.",
        "the paper's method: each group's scale, softmax dual",
        "this package's default: pooled scale, DampedAscent",
        [
            Claim(
                "Under constraints, scalarized advantages score more than scalarized rewards",
                scores(f"{before}/cgrpo_scalarized_advantages", f"{before}/cgrpo_scalarized_rewards"),
                scores(ours, lagrangian),
            ),
            Claim(
                "… with equal weights",
                scores(f"{before}/equal_weights_scalarized_advantages", f"{before}/equal_weights_scalarized_rewards"),
                scores(f"{methods}/equal_weights", f"{methods}/equal_weights_scalarized_rewards"),
            ),
            Claim(
                "… with informed weights",
                scores(
                    f"{before}/informed_weights_scalarized_advantages", f"{before}/informed_weights_scalarized_rewards"
                ),
                scores(f"{main}/informed_weights", f"{methods}/informed_weights_scalarized_rewards"),
            ),
            Claim(
                "Constrained GRPO scores more than equal weights",
                scores(theirs, f"{before}/equal_weights_scalarized_advantages"),
                scores(ours, f"{methods}/equal_weights"),
            ),
            Claim(
                "… than informed weights",
                scores(theirs, f"{before}/informed_weights_scalarized_advantages"),
                scores(ours, f"{main}/informed_weights"),
            ),
            Claim(
                "… than EPDMS as the reward",
                scores(theirs, f"{before}/grpo_epdms"),
                scores(ours, f"{methods}/grpo_epdms"),
            ),
            Claim(
                "EPDMS as GRPO's reward does harm",
                gains(f"{before}/grpo_epdms", START_BEFORE, "less"),
                gains(f"{methods}/grpo_epdms", START, "less"),
            ),
            Claim(
                "EPDMS as PPO's reward does harm",
                gains("navsim/critics/ppo_epdms", START_BEFORE, "less"),
                gains(ppo, START, "less"),
            ),
            Claim(
                "Constrained GRPO is comparable with PPO-Lagrangian (± 0.02)",
                scores(theirs, "navsim/critics/ppo_lagrangian", "same"),
                scores(ours, f"{methods}/ppo_lagrangian", "same"),
            ),
            Claim("Constrained GRPO improves on fine-tuning", gains(theirs, START_BEFORE), gains(ours, START)),
            Claim(
                "So does Constrained GRPO with scalarized rewards",
                gains(f"{before}/cgrpo_scalarized_rewards", START_BEFORE),
                gains(lagrangian, START),
            ),
            Claim(
                "Equal weights on advantages don't gain",
                gains(f"{before}/equal_weights_scalarized_advantages", START_BEFORE, "less"),
                gains(f"{methods}/equal_weights", START, "less"),
            ),
            Claim(
                "Equal weights on rewards don't gain",
                gains(f"{before}/equal_weights_scalarized_rewards", START_BEFORE, "less"),
                gains(f"{methods}/equal_weights_scalarized_rewards", START, "less"),
            ),
            Claim(
                "Constraints are met (test, as training scores, minus 0.92)",
                tuple(one(rate, f"{methods}/cgrpo_group_scale", 0.92, f"test/rate/{rate}") for rate in RATES),
                tuple(one(rate, ours, 0.92, f"test/rate/{rate}") for rate in RATES),
            ),
            Claim(
                "… where equal weights on advantages miss NC",
                (one("NC minus 0.92", equal, 0.92, "test/rate/NC", "less"),),
                (one("NC minus 0.92", f"{methods}/equal_weights", 0.92, "test/rate/NC", "less"),),
            ),
            Claim(
                "… where equal weights on rewards miss NC",
                (),
                (one("NC minus 0.92", f"{methods}/equal_weights_scalarized_rewards", 0.92, "test/rate/NC", "less"),),
            ),
            Claim(
                "Under scalarized rewards, the constraints take all the weight without reaching the rate",
                (),
                (
                    one("their multipliers minus 0.9", lagrangian, 0.9, "weight of the constraints"),
                    one("NC minus 0.92", lagrangian, 0.92, "rate/NC", "less"),
                ),
            ),
        ],
    )


# --- word problems


def word_problems() -> Section:
    paper, more, estimators = "gsm8k/paper", "gsm8k/claims", "gsm8k/estimators"
    theirs, ours = f"{more}/scalarized_advantages_softmax_adam", f"{more}/scalarized_advantages"
    models = NotRun("larger models", "none is packaged", 0)

    def correct(method: str, other: str, expected: Literal["more", "less", "same"] = "more") -> Cell:
        return (one("correctness", method, other, "test/rate/correctness", expected),)

    def shift(method: str) -> Cell:
        return (
            Comparison(
                "test minus training",
                (method,),
                (method,),
                "test/rate/correctness",
                "same",
                other_key="rate/correctness",
            ),
        )

    def misses_feasible(method: str) -> Cell:
        """Correctness has a threshold of 0.999, which no policy here reaches, and format one of 0.99."""
        runs = f"{more}/infeasible/{method}"
        return (
            one("multiplier of the infeasible constraint minus 0.5", runs, 0.5, "multiplier/correctness"),
            one("format minus 0.99", runs, 0.99, "rate/format", "less"),
        )

    return Section(
        "Word problems (the paper: GSM8K)",
        "Correctness of the answers to 1,000 test problems. The softmax dual has the floor that it needs here.\n"
        "PPO-Lagrangian has the dual of the Constrained GRPO beside it.",
        "the paper's method: each group's scale, softmax dual",
        "this package's default: pooled scale, DampedAscent",
        [
            Claim("More correct than GDPO", correct(theirs, f"{paper}/gdpo"), correct(ours, f"{paper}/gdpo")),
            Claim(
                "Scalarized advantages more correct than scalarized rewards",
                correct(theirs, f"{more}/scalarized_rewards_softmax_adam"),
                correct(f"{paper}/scalarized_advantages", f"{paper}/scalarized_rewards"),
            ),
            Claim(
                "Comparable with PPO-Lagrangian, without a critic (± 0.02)",
                correct(theirs, f"{more}/ppo_lagrangian_softmax_adam", "same"),
                correct(ours, f"{more}/ppo_lagrangian", "same"),
            ),
            Claim(
                "Fixed weights give up correctness",
                correct(theirs, f"{paper}/fixed_weights"),
                correct(ours, f"{paper}/fixed_weights"),
            ),
            Claim(
                "A dual learning rate of 1e-4 suffices (± 0.02; here 300 updates)",
                (one("correctness minus 0.85", f"{paper}/dual_rate_1e-4", 0.85, "test/rate/correctness", "same"),),
            ),
            Claim("The shift from training to test is small (± 0.02)", shift(theirs), shift(ours)),
            Claim(
                "With an infeasible threshold, the softmax dual gives it most of the weight (a limitation)",
                misses_feasible("infeasible_softmax_adam"),
                misses_feasible("infeasible"),
            ),
            Claim("Gains grow with the model (1.5, 3 and 7 billion parameters)", (models,), (models,)),
            Claim(
                "Not the paper's claim: one running deviation is more correct than each group's",
                (),
                correct(f"{estimators}/pooled", f"{estimators}/group"),
            ),
        ],
    )
