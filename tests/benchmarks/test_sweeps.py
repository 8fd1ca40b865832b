"""What a figure of fixed weights shows."""

import pytest

from benchmarks.sweeps import find_sweeps, sweep_figures
from tests.cli.report.conftest import changed, fixed, made, method


@pytest.mark.parametrize(
    ("rewards", "from_zero"),
    [((0.1, 0.5, 0.9), True), ((-0.5, 0.5, 0.9), False), ((-3, -2, -1), False), ((0.8, 0.85, 0.9), False)],
)
def test_sweeps_show_all_rewards(rewards, from_zero):
    methods = []
    for n, reward in enumerate(rewards):
        final = {"reward/mean": reward, "rate/lava": 0.5}
        config = changed({"callbacks.multipliers": fixed(lava=n / 10)})
        methods.append(method(f"m{n}", made({tag: [1.0] * 10 for tag in final}, final, config=config)))
    [sweep] = find_sweeps([*methods, method("learned", made())])
    [line] = sweep.rows[""]
    assert (sweep.component, line.name) == ("lava", "ScalarizedAdvantages")
    assert [point.weight("lava") for point in line.points] == [0, 0.1, 0.2]
    [(name, figure)] = sweep_figures([sweep])
    (low, high), rates = (axes.get_ylim() for axes in figure.axes[:2])
    assert name == "sweep" and rates[0] == 0
    assert (low == 0) == from_zero and low <= min(rewards) and high >= max(rewards)
    assert find_sweeps(methods[:2]) == []
