"""nuPI against the recursion of Sohrabi et al. (2024)."""

import pytest

from lightning_cgrpo.multipliers import NuPI
from tests.multipliers.stepping import draws, maker, multiplier

controller = maker(NuPI)


@pytest.mark.parametrize("nu", [0.0, 0.9, -0.5])
def test_equals_the_recursion(nu: float) -> None:
    made = controller(kp=0.8, ki=0.1, nu=nu, max_multiplier=0.3, init=0.2)
    expected, smoothed, seen = 0.2, None, set()
    for v in (draws(300) - 0.05).tolist():
        new = v if smoothed is None else nu * smoothed + (1 - nu) * v
        change = 0.0 if smoothed is None else new - smoothed
        expected = min(max(expected + 0.1 * v + 0.8 * change, 0.0), 0.3)
        smoothed = new
        assert multiplier(made, v) == pytest.approx(expected, abs=1e-12)
        seen.add(round(expected, 9))
    assert {0.0, 0.3} < seen  # both bounds were met
