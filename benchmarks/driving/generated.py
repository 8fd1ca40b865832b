"""Check that generated scenes are solvable, not by driving straight on, and easy to get wrong.

    python benchmarks/driving/generated.py               # 1,000 scenes, about two minutes; fails if they aren't

Traffic is log replay, without the human filter, as in training. Drivers: the scene's human, PDM-Closed, constant
velocity (and heading), and the random candidates of `random_candidates`.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor

from lightning_cgrpo.navsim.columns import SHORT
from lightning_cgrpo.navsim.evaluation import constant_velocity
from lightning_cgrpo.navsim.scorer import Scorer, Scores
from lightning_cgrpo.navsim.simulation.interpolation import in_ego
from lightning_cgrpo.scenes.generator import GeneratedScenes
from lightning_cgrpo.scenes.scene import Scene

TIMES = torch.arange(1, 9, dtype=torch.float64) * 0.5
AT_ONCE = 32


def random_candidates(scene: Scene, count: int, rng: np.random.Generator) -> Tensor:
    """The human's path ``[count, 8, 3]`` at other speeds, turned and shifted.

    The human's distance times U(0.5, 1.5), plus ½ a t² with a ~ N(0, 1) m/s², never backwards; beyond the last pose
    straight on. The path turns by N(0, 0.06) radians, and shifts sideways in proportion to time, N(0, 1) m at 4 s.
    """
    assert scene.human is not None
    human = np.concatenate([np.zeros((1, 3)), scene.human.numpy()])
    driven = np.append(0.0, np.hypot(*np.diff(human[:, :2], axis=0).T).cumsum())
    times = TIMES.numpy()
    wanted = driven[1:] * rng.uniform(0.5, 1.5, (count, 1)) + rng.normal(0, 1, (count, 1)) * times**2 / 2
    wanted = np.maximum.accumulate(wanted.clip(0), 1)
    grid = driven + 1e-9 * np.arange(9)  # a human who stands still has no path to drive along
    inside = wanted.clip(None, driven[-1])
    x, y, yaw = (np.interp(inside, grid, human[:, column]) for column in range(3))
    x, y = x + (wanted - inside) * np.cos(yaw), y + (wanted - inside) * np.sin(yaw)
    turn, side = rng.normal(0, 0.06, (count, 1)), rng.normal(0, 1, (count, 1)) * times / 4
    side = np.where(wanted > 0.5, side, 0.0)  # a car that stands doesn't slide
    x, y = x - side * np.sin(yaw), y + side * np.cos(yaw)
    poses = [x * np.cos(turn) - y * np.sin(turn), x * np.sin(turn) + y * np.cos(turn), yaw + turn]
    return torch.from_numpy(np.stack(poses, -1))


def shares(scores: Scores, lit: Tensor) -> dict[str, float]:
    """Mean EPDMS, share above 0, and shares of candidates that violate each sub-score (TLC: where lights are)."""
    assert bool(scores.valid.all()), "a candidate couldn't be scored"
    violated = scores.violations()
    row = {"candidates": float(len(lit)), "EPDMS": float(scores.epdms.mean())}
    row["EPDMS > 0"] = float((scores.epdms > 0).double().mean())
    for short in ("NC", "DAC", "DDC", "TLC", "TTC", "LK", "HC"):
        counted = violated[SHORT[short]]
        row[short] = float((counted[lit] if short == "TLC" else counted).mean())
    return row


def measure(count: int, candidates: int, seed: int) -> tuple[dict[str, dict[str, float]], float]:
    """`shares` by driver, and the share of scenes with lights."""
    source, rng = GeneratedScenes(seed).scenes("train"), np.random.default_rng(seed)
    scores: dict[str, list[Scores]] = {}
    lights: dict[str, list[Tensor]] = {}
    for first in range(0, count, AT_ONCE):
        scenes = [source[index] for index in range(first, min(first + AT_ONCE, count))]
        scorer, rows = Scorer(scenes, human_filter=False), torch.arange(len(scenes))
        lit = torch.tensor([len(scene.lights.times) > 0 for scene in scenes])
        plans = zip(scenes, scorer.plans, strict=True)
        drivers = {
            "human": ([scene.human[None] for scene in scenes if scene.human is not None], 0.5),
            "PDM-Closed": ([in_ego(scene.ego.poses[-1], plan.trajectory[None, 1:]) for scene, plan in plans], 0.1),
            "constant velocity": (list(constant_velocity(scenes)[1][:, None]), 0.5),
            "random candidates": ([random_candidates(scene, candidates, rng) for scene in scenes], 0.5),
        }
        for name, (poses, interval) in drivers.items():
            scene_rows = rows.repeat_interleave(len(poses[0]))
            scores.setdefault(name, []).append(scorer(torch.cat(poses), scene_rows, interval))
            lights.setdefault(name, []).append(lit[scene_rows])
    rates = {name: shares(Scores.cat(parts), torch.cat(lights[name])) for name, parts in scores.items()}
    return rates, float(torch.cat(lights["human"]).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=1000)
    parser.add_argument("--candidates", type=int, default=16, help="random ones of each scene")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows, lit = measure(arguments.scenes, arguments.candidates, arguments.seed)
    columns = list(rows["human"])
    print(f"{arguments.scenes} scenes, {lit:.0%} with lights.")
    print("Shares of candidates that violate NC to HC; TLC where there are lights.\n")
    print("".join(["driver".ljust(20), *(column.rjust(11) for column in columns)]))
    for name, row in rows.items():
        shown = [f"{row[column]:11.{0 if column == 'candidates' else 3}f}" for column in columns]
        print("".join([name.ljust(20), *shown]))
    assert rows["PDM-Closed"]["EPDMS > 0"] >= 0.95, "PDM-Closed solves too few"
    assert rows["constant velocity"]["EPDMS > 0"] <= 0.7, "constant velocity solves too many"
    for short in ("NC", "DAC", "DDC", "TLC"):
        assert rows["random candidates"][short] >= 0.1, f"{short} is violated too rarely"


if __name__ == "__main__":
    main()
