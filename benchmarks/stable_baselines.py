"""Stable-baselines3's PPO without constraints on the shipped Gymnasium worlds, beside a study's Constrained GRPO.

    python -m lightning_cgrpo study configs/studies/cartpole.yaml           # and pendulum.yaml, minigrid_lava.yaml
    OMP_NUM_THREADS=1 python -m benchmarks.stable_baselines --out benchmarks/results/stable_baselines.json
    OMP_NUM_THREADS=1 python -m benchmarks.stable_baselines --worlds cartpole --seeds 1 --steps 20000  # without a study

With each seed, PPO takes as many environment steps as the study's `constrained_grpo` took with the seed, rounded up to
whole rollouts of PPO. Worlds, wrappers and time limits are those of ``configs/WORLD.yaml``. Hyperparameters are those
that rl-baselines3-zoo publishes in ``hyperparams/ppo.yml`` (commit 00128b5): CartPole-v1, Pendulum-v1, and
MiniGrid-DoorKey-5x5-v0 for MiniGrid, because the file has no LavaGap. PPO learns MiniGrid's own reward, which falls
with the steps to the goal; success is measured.

Reward and rate are those of the study's test: sampled actions, clipped to the bounds, on the 256 test seeds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import lightning
import torch
from lightning.pytorch import LightningDataModule
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_cgrpo.__main__ import read_arguments
from lightning_cgrpo.cli.loading import instantiate
from lightning_cgrpo.cli.preparation import prepare
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.modules.constrained_grpo import ConstrainedGRPO
from lightning_cgrpo.objective.measurement import behavior_metrics, behavior_sums
from lightning_cgrpo.rollout import PromptGroups, Rollouts
from lightning_cgrpo.tasks.gymnasium import Gymnasium


def linear(start: float) -> Callable[[float], float]:
    return lambda left: left * start


PUBLISHED: dict[str, dict[str, Any]] = {
    "cartpole": {
        "envs": 8,
        "n_steps": 32,
        "batch_size": 256,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "n_epochs": 20,
        "learning_rate": linear(0.001),
        "clip_range": linear(0.2),
    },
    "pendulum": {
        "envs": 4,
        "n_steps": 1024,
        "gae_lambda": 0.95,
        "gamma": 0.9,
        "n_epochs": 10,
        "learning_rate": 1e-3,
        "clip_range": 0.2,
        "use_sde": True,
        "sde_sample_freq": 4,
    },
    "minigrid_lava": {
        "envs": 8,
        "normalize": True,
        "n_steps": 128,
        "batch_size": 64,
        "gae_lambda": 0.95,
        "gamma": 0.99,
        "n_epochs": 10,
        "learning_rate": 2.5e-4,
        "clip_range": 0.2,
    },
}
HEADER = (
    "| world | seeds | environment steps | reward | constrained behavior | CPU minutes of a run |\n" + "|---" * 6 + "|"
)


@dataclass(frozen=True)
class Run:
    """A trained PPO.

    Args:
        reward: mean over the test's episodes.
        rate: share of the steps or episodes with the behavior that the configuration constrains.
    """

    world: str
    seed: int
    steps: int
    reward: float
    rate: float
    cpu_minutes: float


def train(world: str, seed: int, steps: int) -> Run:
    config, _ = read_arguments("fit", ["-c", f"configs/{world}.yaml"])
    lightning.seed_everything(seed)
    prepare("fit", config)
    run = instantiate(config, model=ConstrainedGRPO, data=LightningDataModule)
    module, source = run["model"], run["data"].source("test")
    environment: Gymnasium = module.sampler.environment
    started = time.process_time()
    model = learn(environment, seed, steps, **PUBLISHED[world])
    minutes = (time.process_time() - started) / 60
    prompts = source.groups(torch.arange(len(source)))
    rollouts = play(model, environment, prompts)
    signals, _ = module.score(prompts, rollouts)
    metrics = behavior_metrics(module.objective, behavior_sums(module.objective, signals, rollouts))
    (constraint,) = module.objective.constraints
    reward, rate = float(metrics["reward/mean"]), float(metrics[f"rate/{constraint}"])
    return Run(world, seed, model.num_timesteps, reward, rate, minutes)


def learn(environment: Gymnasium, seed: int, steps: int, envs: int, normalize: bool = False, **settings: Any) -> PPO:
    worlds = make_vec_env(environment.make, envs, seed=seed)
    if normalize:
        worlds = VecNormalize(worlds, gamma=settings["gamma"])
    return PPO("MlpPolicy", worlds, seed=seed, device="cpu", **settings).learn(steps)


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
    path = folder / "finished.json"
    if not path.is_file():
        raise UserError(f"Expected a finished run of a study in '{folder}', but got none, try the study, or --steps.")
    finished = json.loads(path.read_text())
    lengths: dict[int, float] = {}
    for file in sorted(folder.glob("version_*/events*")):
        events = EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
        if "rollout/length" in events.Tags()["scalars"]:
            lengths |= {event.step: event.value for event in events.Scalars("rollout/length")}
    if len(lengths) != finished["updates"]:
        raise UserError(f"Expected {finished['updates']} logged updates in '{folder}', but got {len(lengths)}.")
    return round(sum(lengths.values()) * finished["answers"] / finished["updates"])


def table(runs: list[Run]) -> str:
    rows = [HEADER]
    for world in dict.fromkeys(run.world for run in runs):
        of_world = [run for run in runs if run.world == world]
        cells = [
            f"{mean(numbers):{form}}" + (f" ± {stdev(numbers):{form}}" if len(numbers) > 1 else "")
            for numbers, form in (
                ([run.steps for run in of_world], ",.0f"),
                ([run.reward for run in of_world], ".4g"),
                ([run.rate for run in of_world], ".2%"),
                ([run.cpu_minutes for run in of_world], ".1f"),
            )
        ]
        rows.append(f"| {world} | {len(of_world)} | {' | '.join(cells)} |")
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
    for world in options.worlds:
        for seed in range(options.seeds):
            folder = options.runs / world / f"constrained_grpo,seed={seed}"
            runs.append(train(world, seed, options.steps or study_steps(folder)))
            print(runs[-1], flush=True)
            if options.out:
                options.out.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")
    print(table(runs))


if __name__ == "__main__":
    main()
