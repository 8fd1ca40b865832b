"""What every controller promises."""

import copy
import math

import pytest
import torch

from examples.controllers.exponentiated_gradient import ExponentiatedGradient
from examples.controllers.nupi import NuPI
from lightning_cgrpo.multipliers import PID, Controller, DampedAscent, ProjectedAscent, SoftmaxAdam, damped_ascent
from tests.dual_run import saved
from tests.multipliers.stepping import step

MAKE = {
    "damped": DampedAscent,
    "softmax": SoftmaxAdam,
    "exponentiated_gradient": ExponentiatedGradient,
    "projected": ProjectedAscent,
    "pid": PID,
    "pid_smoothed": lambda: PID(kp=0.7, ki=0.1, kd=2.0, smoothing=0.8),
    "nupi": NuPI,
    "nupi_smoothed": lambda: NuPI(kp=0.7, ki=0.1, nu=0.8, init=0.3),
}
each_controller = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())

ALL = torch.ones(3, dtype=torch.bool)


def batches(updates: int, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Violations of 3 constraints with some unobserved ones, which are NaN."""
    generator = torch.Generator().manual_seed(seed)
    violations = 0.1 + 0.3 * torch.randn(updates, 3, generator=generator, dtype=torch.float64)
    observed = torch.rand(updates, 3, generator=generator) < 0.7
    return list(zip(violations.where(observed, math.nan), observed, strict=True))


def run(controller: Controller, steps: list[tuple[torch.Tensor, torch.Tensor]]) -> Controller:
    controller.setup(3)
    for violations, observed in steps:
        controller.step(violations, observed)
    return controller


def flat(state: dict) -> dict[str, torch.Tensor]:
    """The state as tensors by name, those of extra state included."""
    tensors = {}
    for name, value in state.items():
        tensors |= {f"{name}.{key}": v for key, v in flat(value).items()} if isinstance(value, dict) else {name: value}
    return tensors


def state_of(controller: Controller, k: int) -> dict[str, torch.Tensor]:
    """A snapshot of what belongs to constraint k."""
    state = {}
    for name, tensor in flat(controller.state_dict()).items():
        if tensor.dim() == 1:
            state[name] = tensor[k].clone()
        elif str(k + 1) in name.split("."):
            state[name] = tensor.clone()
    assert state
    return state


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


@each_controller
@pytest.mark.parametrize("after", [0, 50])
def test_resume_is_exact(make, after: int) -> None:
    steps = batches(100)
    straight = run(make(), steps)
    state = saved(run(make(), steps[:after]))
    resumed = make()
    resumed.setup(3)
    resumed.load_state_dict(state)
    resumed.setup(3)
    run(resumed, steps[after:])
    assert torch.equal(resumed.weights, straight.weights)
    assert_same(flat(resumed.state_dict()), flat(straight.state_dict()))


@each_controller
def test_weights_are_a_distribution(make) -> None:
    controller = make()
    controller.setup(3)
    for violations, observed in batches(200):
        weights = controller.weights
        assert weights.shape == (4,) and weights.dtype == torch.float64 and not weights.requires_grad
        assert (weights >= 0).all()
        assert weights.sum() == pytest.approx(1, abs=1e-15)
        controller.step(violations, observed)


@each_controller
def test_weight_follows_violation(make) -> None:
    controller = make()
    controller.setup(2)
    start = controller.weights
    for _ in range(20):
        step(controller, 0.3, -0.3)
    peak = controller.weights
    assert peak[1] > start[1] and peak[2] < peak[1]
    for _ in range(60):
        step(controller, -0.3, 0.3)
    assert controller.weights[1] < peak[1] and controller.weights[2] > peak[2]


@each_controller
def test_unobserved_constraint_keeps_its_state(make) -> None:
    controller = run(make(), batches(20))
    before, others = state_of(controller, 1), state_of(controller, 0)
    for _ in range(5):
        controller.step(torch.tensor([0.3, math.nan, -0.2]), torch.tensor([True, False, True]))
    assert_same(state_of(controller, 1), before)
    assert any(not torch.equal(tensor, others[name]) for name, tensor in state_of(controller, 0).items())


@each_controller
@pytest.mark.parametrize("fault", [math.nan, math.inf, -math.inf])
def test_faulty_rate_is_refused(make, fault: float) -> None:
    controller = run(make(), batches(20))
    before = copy.deepcopy(flat(controller.state_dict()))
    with pytest.raises(ValueError, match="Expected finite violations"):
        controller.step(torch.tensor([0.1, fault, 0.1]), ALL)
    assert_same(flat(controller.state_dict()), before)


@each_controller
def test_order_of_constraints_does_not_matter(make) -> None:
    steps, order = batches(100), [2, 0, 1]
    weights = run(make(), steps).weights
    permuted = run(make(), [(v[order], observed[order]) for v, observed in steps]).weights
    assert torch.allclose(permuted[1:], weights[1:][order], rtol=1e-9, atol=0)
    assert torch.allclose(permuted[0], weights[0], rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", [name for name in MAKE if name != "softmax"])
def test_constraints_are_independent(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the softmax's gradient treat each constraint as if it were alone, gaps in its observation left out.

    The default's bound of the sum, which no constraint reaches here, is common to all.
    """
    monkeypatch.setattr(damped_ascent, "TOTAL", 1e300)
    together = run(MAKE[name](), batches(50))
    for k in range(3):
        alone = MAKE[name]()
        alone.setup(1)
        for violations, observed in batches(50):
            if observed[k]:
                alone.step(violations[k : k + 1], observed[k : k + 1])
        assert_same(state_of(alone, 0), state_of(together, k))


@each_controller
def test_setup(make) -> None:
    controller = make()
    with pytest.raises(RuntimeError, match="Expected `setup`"):
        controller.step(torch.zeros(3), ALL)
    controller = run(controller, batches(5))
    before = copy.deepcopy(flat(controller.state_dict()))
    controller.setup(3)
    assert_same(flat(controller.state_dict()), before)
    with pytest.raises(ValueError, match="3 constraints"):
        controller.setup(2)
    for name, tensor in before.items():
        # Adam counts its steps in float32, exact up to 2^24; stalls are counted in integers.
        assert tensor.dtype in (torch.float64, torch.bool) or name.endswith(("step", "stall.count"))
