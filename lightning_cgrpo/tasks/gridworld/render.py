"""Pictures of episodes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signals
from lightning_cgrpo.tasks.gridworld.environment import cell_transitions
from lightning_cgrpo.tasks.task import Renderer

EPISODES = 8
REACHED, MISSED, LAVA = "tab:green", "tab:gray", "#f7a08b"
CROSS: dict[str, Any] = {"marker": "x", "color": "black", "markersize": 5, "linestyle": ""}
RING: dict[str, Any] = {"marker": "o", "color": "tab:blue", "markersize": 6, "linestyle": "", "markerfacecolor": "none"}
LETTER: dict[str, Any] = {"color": "black", "markeredgewidth": 0, "linestyle": ""}


class GridworldRenderer(Renderer):
    """Draws at most `EPISODES` episodes of a group, with a legend."""

    def render(self, prompts: PromptGroups, rollouts: Rollouts, signals: Signals, row: int) -> Figure:
        lava = prompts.columns["lava"][row].cpu()
        size = math.isqrt(len(lava))
        start = int(prompts.columns["start"][row])
        goal = int(prompts.columns["goal"][row])
        figure = Figure(figsize=(4.4, 5.4), layout="constrained")
        axes = figure.add_subplot()
        axes.imshow(lava.view(size, size).numpy(), cmap=ListedColormap(["white", LAVA]), vmin=0, vmax=1)
        reached = signals["goal"].total[row].bool()
        count = min(EPISODES, len(reached))
        next_cells = cell_transitions(size)
        for episode in range(count):
            steps = rollouts.mask[row, episode].cpu()
            cells = [start]
            for action in rollouts.actions[row, episode].cpu()[steps].tolist():
                cells.append(int(next_cells[cells[-1], action]))
            path = np.array(cells)
            # Paths are shifted, because several may lead over the same cells.
            shift = 0.5 * ((episode + 0.5) / count - 0.5)
            x = path % size + shift
            y = path // size + shift
            axes.plot(x, y, color=REACHED if bool(reached[episode]) else MISSED, linewidth=1.3, alpha=0.8)
            burned = lava[path].numpy()
            axes.plot(x[burned], y[burned], **CROSS)
            # Step t ends at cell t + 1 of the path.
            is_low = rollouts.info["battery"][row, episode].cpu()[steps].numpy()
            low = np.flatnonzero(is_low) + 1
            axes.plot(x[low], y[low], **RING)
        for cell, label in ((start, "S"), (goal, "G")):
            axes.text(cell % size, cell // size, label, ha="center", va="center", fontsize=13, fontweight="bold")
        axes.set_xticks([])
        axes.set_yticks([])
        rates = []
        for name in ("lava", "battery"):
            violations, opportunities = signals[name].counts()
            rate = float(violations[row].sum() / opportunities[row].sum())
            rates.append(f"{name} {rate:.1%}")
        axes.set_title(f"goal {int(reached.sum())}/{len(reached)}   rates: {'  '.join(rates)}", fontsize=9)
        figure.legend(handles=_legend_entries(), loc="outside lower center", ncols=2, fontsize=8, frameon=False)
        return figure


def _legend_entries() -> list[Artist]:
    return [
        Line2D([], [], marker=r"$\mathbf{S}$", label="start of the agent", **LETTER),
        Line2D([], [], marker=r"$\mathbf{G}$", label="goal", **LETTER),
        Line2D([], [], color=REACHED, label="path to the goal"),
        Line2D([], [], color=MISSED, label="path that misses the goal"),
        Patch(color=LAVA, label="lava"),
        Line2D([], [], label="step on lava", **CROSS),
        Line2D([], [], label="step with a low battery", **RING),
    ]
