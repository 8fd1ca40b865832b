"""Stable-baselines3's PPO without constraints, or with a penalty, beside a study's Constrained GRPO.

    python -m lightning_cgrpo study configs/studies/cartpole.yaml           # and the other worlds' studies
    OMP_NUM_THREADS=1 python -m benchmarks.stable_baselines --out benchmarks/results/stable_baselines.json
    OMP_NUM_THREADS=1 python -m benchmarks.stable_baselines --worlds cartpole --seeds 1 --steps 20000  # without a study

With each seed, PPO takes as many environment steps as the study's `constrained_grpo` took with the seed, rounded up to
whole rollouts of PPO. Worlds, wrappers and time limits are those of ``configs/WORLD.yaml``. Hyperparameters are
published ones, in ``stable_baselines.yaml``. PPO learns MiniGrid's own reward, which falls with the steps to the goal;
success is measured. In highway-env and Hopper, a fixed penalty is taken from the reward of each costly step: a
crash, and a step above the limit on the velocity.

Reward and behavior are those of the study's test: sampled actions, clipped to the bounds, on the same test seeds. CPU
seconds are those of training alone.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import gymnasium
import lightning
import torch
import yaml
from lightning.pytorch import LightningDataModule
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_cgrpo.__main__ import read_arguments
from lightning_cgrpo.cli.loading import instantiate
from lightning_cgrpo.cli.preparation import prepare
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.output import SUMMARY
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts
from lightning_cgrpo.core.user_code import import_callable
from lightning_cgrpo.modules.constrained_grpo import ConstrainedGRPO
from lightning_cgrpo.objective.measurement import behavior_metrics, behavior_sums
from lightning_cgrpo.run.runs import read_record
from lightning_cgrpo.tasks.gymnasium import Gymnasium

PUBLISHED: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
"""Arguments of `learn` by world; ``lin_0.001`` falls from 0.001 to 0, as in rl-zoo."""
PENALTIES: dict[str, list[float]] = {"highway": [1.0, 10.0], "hopper_velocity": [1.0]}
"""Penalties of a costly step. In highway-env, the best return without crashes is 30; in Hopper, a step earns 1.74."""
HEADER = "| world | penalty | seeds | environment steps | reward | behavior | CPU s of a run |\n" + "|---" * 7 + "|"


def costly(terminated: bool, info: dict[str, Any]) -> bool:
    """Whether a step crashes in highway-env, or is above the limit in Hopper, where a fall costs nothing."""
    return info["x_velocity"] > 0.7402 if "x_velocity" in info else terminated


class Penalized(gymnasium.Wrapper):
    """A world whose reward is less by a penalty in each costly step."""

    def __init__(self, world: gymnasium.Env, penalty: float) -> None:
        super().__init__(world)
        self.penalty = penalty

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, reward, terminated, truncated, info = self.env.step(action)
        return seen, float(reward) - self.penalty * costly(terminated, info), terminated, truncated, info


@dataclass(frozen=True)
class Run:
    """A trained PPO.

    Args:
        penalty: of a costly step; 0 for none.
        reward: mean over the test's episodes.
        behavior: that the configuration constrains: a share of steps or episodes, or a mean of episodes.
    """

    world: str
    penalty: float
    seed: int
    steps: int
    reward: float
    behavior: float
    cpu_seconds: float


def train(world: str, penalty: float, seed: int, steps: int) -> Run:
    config, _ = read_arguments("fit", ["-c", f"configs/{world}.yaml"])
    lightning.seed_everything(seed)
    prepare("fit", config)
    run = instantiate(config, model=ConstrainedGRPO, data=LightningDataModule)
    module, source = run["model"], run["data"].source("test")
    environment: Gymnasium = module.sampler.environment
    started = time.process_time()
    model = learn(lambda: Penalized(environment.make(), penalty), seed, steps, **PUBLISHED[world])
    seconds = time.process_time() - started
    prompts = source.groups(torch.arange(len(source)))
    rollouts = play(model, environment, prompts)
    signals, _ = module.score(prompts, rollouts)
    metrics = behavior_metrics(module.objective, behavior_sums(module.objective, signals, rollouts))
    ((name, constraint),) = module.objective.constraints.items()
    reward, behavior = (float(metrics[tag]) for tag in ("reward/mean", constraint.bound.tag(name)))
    return Run(world, penalty, seed, model.num_timesteps, reward, behavior, seconds)


def linear(start: float) -> Callable[[float], float]:
    return lambda left: left * start


def learn(
    make: Callable[[], gymnasium.Env], seed: int, steps: int, envs: int, normalize: bool = False, **settings: Any
) -> PPO:
    worlds = make_vec_env(make, envs, seed=seed)
    settings |= {name: linear(float(value[4:])) for name, value in settings.items() if str(value).startswith("lin_")}
    policy = dict(settings.pop("policy_kwargs", {}))
    if "activation_fn" in policy:
        policy["activation_fn"] = import_callable(policy["activation_fn"], "activation_fn")
    if normalize:
        worlds = VecNormalize(worlds, gamma=settings["gamma"])
    return PPO("MlpPolicy", worlds, seed=seed, device="cpu", policy_kwargs=policy, **settings).learn(steps)


def play(model: PPO, environment: Gymnasium, prompts: PromptGroups) -> Rollouts:
    """One episode from each prompt's seed, with sampled actions."""
    episodes = environment.reset(prompts, 1)
    normalized, states, parts, masks = model.get_vec_normalize_env(), episodes.start, [], []
    while not bool((ended := episodes.ended(states)).all()):
        if model.use_sde and len(parts) % model.sde_sample_freq == 0:
            model.policy.reset_noise(len(states))
        seen = episodes.observe(states).numpy()
        actions, _ = model.predict(seen if normalized is None else normalized.normalize_obs(seen))
        reached = episodes.step(states, chosen := torch.from_numpy(actions))
        parts.append(episodes.report(states, chosen, reached))
        masks.append(~ended)
        states = reached
    mask = torch.stack(masks, 1)[:, None]  # [B, 1, T]
    info = {}
    for name in parts[0]:
        values = torch.stack([part[name] for part in parts], 1)[:, None]  # [B, 1, T, ...]
        info[name] = torch.where(mask.view(*mask.shape, *[1] * (values.dim() - 3)), values, 0)
    return Rollouts(info["action"], mask, {}, info=info)


def study_steps(folder: Path) -> int:
    """Environment steps of a study's finished run, from its log."""
    records = filter(None, map(read_record, folder.glob(f"version_*/{SUMMARY}")))
    finished = next((record for record in records if record.status == "finished"), None)
    if finished is None:
        raise UserError(f"Expected a finished run of a study in '{folder}', but got none, try the study, or --steps.")
    lengths: dict[int, float] = {}
    for file in sorted(folder.glob("version_*/events*")):
        events = EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
        if "rollout/length" in events.Tags()["scalars"]:
            lengths |= {event.step: event.value for event in events.Scalars("rollout/length")}
    if len(lengths) != finished.updates:
        raise UserError(f"Expected {finished.updates} logged updates in '{folder}', but got {len(lengths)}.")
    return round(sum(lengths.values()) * finished.answers / finished.updates)


def table(runs: list[Run]) -> str:
    rows = [HEADER]
    for world, penalty in dict.fromkeys((run.world, run.penalty) for run in runs):
        alike = [run for run in runs if (run.world, run.penalty) == (world, penalty)]
        cells = [
            f"{mean(numbers):{form}}" + (f" ± {stdev(numbers):{form}}" if len(numbers) > 1 else "")
            for numbers, form in (
                ([run.steps for run in alike], ",.0f"),
                ([run.reward for run in alike], ".4g"),
                ([run.behavior for run in alike], ".3g"),
                ([run.cpu_seconds for run in alike], ".0f"),
            )
        ]
        rows.append(f"| {world} | {penalty:g} | {len(alike)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", choices=PUBLISHED, default=list(PUBLISHED))
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 0")
    parser.add_argument("--steps", type=int, help="environment steps; by default those of the study's runs")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the studies' runs")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = []
    every = [(world, penalty) for world in options.worlds for penalty in PENALTIES.get(world, [0.0])]
    for (world, penalty), seed in product(every, range(options.seeds)):
        folder = options.runs / world / f"constrained_grpo,seed={seed}"
        runs.append(train(world, penalty, seed, options.steps or study_steps(folder)))
        print(runs[-1], flush=True)
        if options.out:
            options.out.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")
    print(table(runs))


if __name__ == "__main__":
    main()
