"""Runs in lockstep are the runs that they would be alone."""

import threading

import pytest
import torch
from lightning.pytorch import Callback, Trainer

from benchmarks.runner.lockstep import Lockstep, LockstepSampler, Request, play_together
from lightning_cgrpo import CategoricalMLP, ConstrainedGRPO, Constraint, EnvironmentSampler, Objective, Optimization
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.randomness import Stream, uniform
from lightning_cgrpo.tasks.gridworld import Gridworld, GridworldTask, Layouts


@pytest.fixture(autouse=True)
def float64():
    """So that the rounding of larger products changes no action."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def make_policy(seed):
    torch.manual_seed(seed)
    policy = CategoricalMLP(30, 5, hidden=(16, 8))
    with torch.no_grad():
        policy.net[-1].weight.mul_(4)  # far from uniform
    return policy


def request(seed, prompts=4, group_size=3, horizon=25):
    index = torch.arange(prompts) + 10 * seed
    layouts = Layouts(1000, size=4, lava=3).groups(index)
    draws = uniform(seed, Stream.ROLLOUT, 0, index, (group_size, horizon))
    return Request(Gridworld(horizon), make_policy(seed), layouts, group_size, draws)


def alone(request):
    with torch.no_grad():
        return EnvironmentSampler(request.environment).rollout(
            request.policy, request.prompts, request.group_size, lambda *shape: request.draws
        )


def assert_same(rollouts, expected):
    assert torch.equal(rollouts.actions, expected.actions)
    assert torch.equal(rollouts.mask, expected.mask)
    assert torch.equal(rollouts.inputs["observations"], expected.inputs["observations"])
    assert all(torch.equal(rollouts.info[name], expected.info[name]) for name in ("goal", "lava", "battery"))
    torch.testing.assert_close(rollouts.log_probs, expected.log_probs, rtol=0, atol=1e-12)


def test_each_policy_acts_in_its_own_episodes():
    requests = [request(seed) for seed in range(4)]
    with torch.no_grad():
        together = play_together(requests)
    lengths = [rollouts.lengths for rollouts in together]
    for rollouts, one in zip(together, requests, strict=True):
        assert_same(rollouts, alone(one))
    # The comparison covers runs whose episodes end at different times.
    assert len({int(length.sum()) for length in lengths}) == 4


def in_threads(lockstep, functions):
    """Calls them in a thread each; returns their results or errors."""
    results = [None] * len(functions)

    def run(number):
        with lockstep.thread():
            try:
                results[number] = functions[number]()
            except Exception as error:
                results[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "the threads wait for each other forever"
    return results


def test_threads_may_do_different_things():
    """One asks often and one seldom, one evaluates, one fails by itself: nobody waits for who doesn't come."""
    lockstep = Lockstep(4)

    def ask(seeds, **options):
        return [lockstep.rollout(request(seed, **options)) for seed in seeds]

    def fail():
        ask([5])
        raise RuntimeError("mine")

    plans = [lambda: ask(range(6)), lambda: ask([7]), lambda: ask([8, 9], prompts=2, group_size=1), fail]
    often, seldom, evaluation, failure = in_threads(lockstep, plans)
    assert isinstance(failure, RuntimeError)
    assert len(often) == 6
    for rollouts, seed in [*zip(often, range(6), strict=True), (seldom[0], 7)]:
        assert_same(rollouts, alone(request(seed)))
    for rollouts, seed in zip(evaluation, (8, 9), strict=True):
        assert_same(rollouts, alone(request(seed, prompts=2, group_size=1)))


def test_an_error_in_a_joint_rollout_reaches_all_who_wait():
    lockstep = Lockstep(2)

    def ask(seed):
        wrong = request(seed)
        wrong.prompts.columns["lava"] = wrong.prompts.columns["lava"][:, :-1]  # no square
        return lockstep.rollout(wrong)

    results = in_threads(lockstep, [lambda: ask(0), lambda: ask(1)])
    assert all(isinstance(result, Exception) for result in results)


def test_runs_of_different_kinds_are_played_by_themselves():
    """Another environment's settings, another grid, another network."""
    others = {"recharge": request(1), "size": request(2), "hidden": request(3), "same": request(4)}
    others["recharge"].environment = Gridworld(25, recharge=1)
    others["size"].prompts = Layouts(1000, size=5, lava=3).groups(others["size"].prompts.index)
    others["hidden"].policy = CategoricalMLP(30, 5, hidden=(4,))
    requests = [request(0), *others.values()]
    assert len({one.kind for one in requests}) == 4 and requests[0].kind == others["same"].kind
    lockstep = Lockstep(len(requests))
    results = in_threads(lockstep, [lambda one=one: lockstep.rollout(one) for one in requests])
    for rollouts, one in zip(results, requests, strict=True):
        assert_same(rollouts, alone(one))


def test_a_run_that_evaluates_gives_no_inference_tensors_to_one_that_trains():
    lockstep = Lockstep(2)

    def evaluate():
        with torch.inference_mode():
            return lockstep.rollout(request(0))

    results = in_threads(lockstep, [evaluate, lambda: lockstep.rollout(request(1))])
    assert not any(rollouts.actions.is_inference() or rollouts.log_probs.requires_grad for rollouts in results)


class History(Callback):
    def __init__(self):
        self.weights, self.goals = [], []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.weights.append(pl_module.weights.clone())
        self.goals.append(outputs["signals"]["goal"].value.clone())


def train(seed, updates, lockstep=None):
    """Returns weights and rewards of every update, and the final parameters."""
    environment = Gridworld(max_steps=25)
    torch.manual_seed(seed)
    module = ConstrainedGRPO(
        CategoricalMLP(30, 5, hidden=(16,)),
        EnvironmentSampler(environment) if lockstep is None else LockstepSampler(environment, lockstep),
        GridworldTask(),
        Objective("goal", {"lava": Constraint(at_most=0.01), "battery": Constraint(at_most=0.01)}),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=5e-3),
        optimization=Optimization(epochs=2, minibatch_size=200, aggregation="token_mean"),
        group_size=4,
        seed=seed,
    )
    history = History()
    Trainer(
        accelerator="cpu",
        max_steps=updates,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        callbacks=[LagrangianCallback(SoftmaxAdam(lr=0.01)), history],
    ).fit(module, GridworldDataModule(prompts_per_update=4, size=5, lava=5, seed=seed))
    return torch.stack(history.weights), torch.stack(history.goals), list(module.parameters())


def test_training_in_lockstep_equals_single_runs():
    """Over 50 updates, with the module, the estimator, the loss and the duals as they are; one stops earlier."""
    lengths = {0: 50, 1: 50, 2: 30}
    lockstep = Lockstep(len(lengths))
    # (A loop variable would be bound late.)
    runs = in_threads(lockstep, [lambda s=seed, u=updates: train(s, u, lockstep) for seed, updates in lengths.items()])
    for (seed, updates), run in zip(lengths.items(), runs, strict=True):
        assert not isinstance(run, Exception), run
        weights, goals, parameters = train(seed, updates)
        assert torch.equal(run[1], goals)
        torch.testing.assert_close(run[0], weights, rtol=0, atol=1e-12)
        for ours, theirs in zip(run[2], parameters, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
    assert not torch.equal(runs[0][1], runs[1][1])
