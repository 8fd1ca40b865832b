"""A picture of episodes on their layout."""

from __future__ import annotations

import math

import numpy as np
import torch
from matplotlib.figure import Figure

from lightning_cgrpo.rollout import PromptGroups, Rollouts, Signals
from lightning_cgrpo.tasks import Renderer
from lightning_cgrpo.tasks.gridworld.environment import moves


class GridworldRenderer(Renderer):
    """The group's episodes on their layout: lava red, start and goal marked, crosses where a step ended on lava.

    Episodes that reach the goal are green, others gray.

    Args:
        episodes: draw at most this many of the group.
    """

    def __init__(self, episodes: int = 8) -> None:
        if episodes < 1:
            raise ValueError(f"Expected argument `episodes` to be at least 1, but got {episodes}.")
        self.episodes = episodes

    def render(self, prompts: PromptGroups, rollouts: Rollouts, signals: Signals, row: int) -> Figure:
        lava = prompts.columns["lava"][row].cpu()
        size = math.isqrt(len(lava))
        start, goal = int(prompts.columns["start"][row]), int(prompts.columns["goal"][row])
        figure = Figure(figsize=(4.4, 4.8), layout="constrained")
        axes = figure.add_subplot()
        axes.imshow(lava.view(size, size).float().numpy(), cmap="Reds", vmin=0, vmax=1.6)
        reached = signals["goal"].value[row].bool()
        count = min(self.episodes, len(reached))
        for episode in range(count):
            path = self._path(rollouts.actions[row, episode].cpu(), rollouts.mask[row, episode].cpu(), start, size)
            # A little apart, so that paths over the same cells can be told from each other.
            shift = 0.5 * ((episode + 0.5) / count - 0.5)
            y, x = path // size + shift, path % size + shift
            color = "tab:green" if bool(reached[episode]) else "tab:gray"
            axes.plot(x, y, color=color, linewidth=1.3, alpha=0.8)
            burned = lava[path].numpy()
            axes.plot(x[burned], y[burned], "x", color="black", markersize=5)
        for cell, label in ((start, "S"), (goal, "G")):
            axes.text(cell % size, cell // size, label, ha="center", va="center", fontsize=13, fontweight="bold")
        axes.set_xticks([])
        axes.set_yticks([])
        rates = "  ".join(
            f"{name} {float(count.sum() / total.sum()):.1%}"
            for name in ("lava", "battery")
            for count, total in [[c[row] for c in signals[name].counts()]]
        )
        axes.set_title(f"goal {int(reached.sum())}/{len(reached)}   steps with {rates}", fontsize=9)
        return figure

    @staticmethod
    def _path(actions: torch.Tensor, mask: torch.Tensor, start: int, size: int) -> np.ndarray:
        table = moves(size)
        cells = [start]
        for action in actions[mask].tolist():
            cells.append(int(table[cells[-1], action]))
        return np.array(cells)
