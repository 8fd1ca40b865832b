"""Claims about word problems."""

from __future__ import annotations

from typing import Literal

from benchmarks.claims_of_the_paper.claim import Cell, Claim, Comparison, NotRun, Section, compare


def word_problems() -> Section:
    paper, more, estimators = "gsm8k/paper", "gsm8k/claims", "gsm8k/estimators"
    theirs, ours = f"{more}/scalarized_advantages_softmax_adam", f"{more}/scalarized_advantages"
    models = NotRun("larger models", "none is packaged", 0)

    def correct(method: str, other: str, expected: Literal["more", "less", "same"] = "more") -> Cell:
        return (compare("correctness", method, other, "test/rate/correctness", expected),)

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
            compare("multiplier of the infeasible constraint minus 0.5", runs, 0.5, "multiplier/correctness"),
            compare("format minus 0.99", runs, 0.99, "rate/format", "less"),
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
                (compare("correctness minus 0.85", f"{paper}/dual_rate_1e-4", 0.85, "test/rate/correctness", "same"),),
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
