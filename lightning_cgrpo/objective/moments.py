"""From sums over prompts to rates with clustered standard errors."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from lightning_cgrpo.objective.verdicts.clustered import ClusteredMean, ClusteredRate


@dataclass(frozen=True)
class KindOfPrompts:
    """Sums over the prompts of one kind: those with any violation, or those with any clean opportunity.

    Args:
        prompts: their number.
        opportunities: Σ o.
        squares: Σ o².
    """

    prompts: float
    opportunities: float
    squares: float

    @property
    def effective(self) -> float:
        """The number of prompts with equal opportunities that say as much, (Σ o)² / Σ o² (Kish, 1965)."""
        return self.opportunities**2 / self.squares if self.squares else 0.0


@dataclass(frozen=True)
class Moments:
    """Sums over prompts of a constraint's violations v and opportunities o.

    Args:
        violations: Σ v.
        opportunities: Σ o.
        observed: number of prompts with opportunities.
        most: Σ of the most opportunities that these prompts can have.
        violating: of prompts with any violation.
        clean: of prompts with any opportunity without a violation.
        violations_squared: Σ v².
        products: Σ v o.
        opportunities_squared: Σ o².
        fourths: Σ vᵏ o⁴⁻ᵏ, of k from 0 to 4.
    """

    violations: float
    opportunities: float
    observed: float
    most: float
    violating: KindOfPrompts
    clean: KindOfPrompts
    violations_squared: float
    products: float
    opportunities_squared: float
    fourths: tuple[float, ...]

    def rate(self) -> ClusteredRate:
        """The rate of violation with its clustered standard error."""
        rate = self.violations / self.opportunities
        prompts = int(self.observed)
        error = None
        if 0 < rate < 1:
            error = self._standard_error(rate, self.opportunities_squared)
        return ClusteredRate(
            rate,
            error,
            prompts,
            self.opportunities,
            violating=int(self.violating.prompts),
            clean=int(self.clean.prompts),
            violating_effective=self.violating.effective,
            clean_effective=self.clean.effective,
            most=self.most / prompts,
            telling=None if error is None else self._telling_prompts(rate),
        )

    def mean(self) -> ClusteredMean:
        """The mean of the violations with its clustered standard error."""
        mean = self.violations / self.opportunities
        prompts = int(self.observed)
        error = self._standard_error(mean, self.violations_squared)
        return ClusteredMean(mean, error, prompts, self.opportunities, most=self.most / prompts)

    def _standard_error(self, rate: float, scale: float) -> float | None:
        """The clustered standard error; None if all prompts agree.

        Args:
            scale: beside which rounding leaves no spread.
        """
        prompts = int(self.observed)
        squares = self._residual_squares(rate)
        # What rounding leaves of a sum of zeros is no spread.
        if prompts < 2 or not squares > 1e-12 * scale:
            return None
        return math.sqrt(prompts / (prompts - 1) * squares) / self.opportunities

    def _residual_squares(self, rate: float) -> float:
        """Σ z², with z = v - rate · o of each prompt."""
        return self.violations_squared - 2 * rate * self.products + rate**2 * self.opportunities_squared

    def _telling_prompts(self, rate: float) -> float:
        """The number of prompts that would tell the standard error as well, if they made equal parts of it.

        Satterthwaite's (1946) degrees of freedom (Σ z²)² / Σ z⁴ of the squared error.
        """
        squares = self._residual_squares(rate)
        # Σ z⁴ by the binomial theorem.
        fourths = 0.0
        for power, moment in enumerate(self.fourths):
            fourths += math.comb(4, power) * (-rate) ** (4 - power) * moment
        # Σ z⁴ is at least (Σ z²)² / prompts, which rounding may miss.
        least_fourths = squares**2 / max(self.observed, 1.0)
        return squares**2 / max(fourths, least_fourths)


def moments(constraints: Iterable[str], rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Scalars for `clustered_rates`, by name for a collective.

    Args:
        rows: violations, opportunities and most opportunities of prompts, ``[B]`` each, see `prompt_sums`.
    """
    scalars: dict[str, Tensor] = {}
    for name in constraints:
        violations = rows[violations_of(name)]
        opportunities = rows[opportunities_of(name)]
        observed = opportunities > 0
        parts = {
            "observed": observed.sum(),
            "most": rows[most_of(name)].maximum(opportunities).where(observed, 0).sum(),
            "violations_squared": violations.square().sum(),
            "products": (violations * opportunities).sum(),
            "opportunities_squared": opportunities.square().sum(),
        }
        for kind, prompts in (("violating", violations > 0), ("clean", violations < opportunities)):
            opportunities_of_kind = opportunities.where(prompts, 0)
            parts[f"{kind}.prompts"] = prompts.sum()
            parts[f"{kind}.opportunities"] = opportunities_of_kind.sum()
            parts[f"{kind}.squares"] = opportunities_of_kind.square().sum()
        for power in range(5):
            parts[f"fourths {power}"] = (violations**power * opportunities ** (4 - power)).sum()
        for part, value in parts.items():
            scalars[_moment_key(name, part)] = value
    return scalars


def moments_of(name: str, sums: Mapping[str, float]) -> Moments:
    """The moments of a constraint, from the scalars of `moments` and the sums of violations and opportunities."""

    def moment_of(part: str) -> float:
        return sums[_moment_key(name, part)]

    def kind_of_prompts(kind: str) -> KindOfPrompts:
        return KindOfPrompts(
            prompts=moment_of(f"{kind}.prompts"),
            opportunities=moment_of(f"{kind}.opportunities"),
            squares=moment_of(f"{kind}.squares"),
        )

    return Moments(
        violations=sums[violations_of(name)],
        opportunities=sums[opportunities_of(name)],
        observed=moment_of("observed"),
        most=moment_of("most"),
        violating=kind_of_prompts("violating"),
        clean=kind_of_prompts("clean"),
        violations_squared=moment_of("violations_squared"),
        products=moment_of("products"),
        opportunities_squared=moment_of("opportunities_squared"),
        fourths=tuple(moment_of(f"fourths {power}") for power in range(5)),
    )


def clustered_rates(
    constraints: Iterable[str], sums: Mapping[str, float], means: Container[str] = ()
) -> dict[str, ClusteredRate]:
    """Rates of violation with clustered standard errors (see `RunningSums.evaluation`), of observed constraints.

    Args:
        means: names of the constraints that bound means.
    """
    rates: dict[str, ClusteredRate] = {}
    for name in constraints:
        moments_of_prompts = moments_of(name, sums)
        if not moments_of_prompts.opportunities:
            continue
        if name in means:
            rates[name] = moments_of_prompts.mean()
        else:
            rates[name] = moments_of_prompts.rate()
    return rates


def violations_of(constraint: str) -> str:
    """The name of a constraint's violations among sums."""
    return f"violations/{constraint}"


def opportunities_of(constraint: str) -> str:
    """The name of a constraint's opportunities among sums."""
    return f"opportunities/{constraint}"


def most_of(constraint: str) -> str:
    """The name, among sums, of the most opportunities that answers can have."""
    return f"most/{constraint}"


def faults_of(signal: str) -> str:
    """The name of a signal's faults among sums."""
    return f"faults/{signal}"


def constraints_of(sums: Iterable[str]) -> list[str]:
    """The constraints whose violations are among names of sums."""
    start = violations_of("")
    return [name.removeprefix(start) for name in sums if name.startswith(start)]


def _moment_key(name: str, part: str) -> str:
    """The name of a moment among other sums."""
    return f"moments.{part}/{name}"
