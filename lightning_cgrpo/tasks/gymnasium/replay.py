"""Detection of state and randomness that a reset from a seed leaves in a world."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from lightning_cgrpo.tasks.gymnasium.episodes import GymnasiumEpisodes

REPLAYED = 4
"""Episodes that are replayed."""

Play = Callable[[int], GymnasiumEpisodes]
"""Resets a spare world, always the same, from the seed and options of an episode."""


def difference(episodes: GymnasiumEpisodes, play: Play) -> str | None:
    """The first value of an episode that differs in a world that has played others, as "reward of step 3".

    The `REPLAYED` episodes with the largest rewards and infos are replayed, since zeros and short episodes tell little.

    Args:
        episodes: all of them ended.
    """
    recorded = [episodes.recorded(row) for row in range(len(episodes.seeds))]
    names = [name for name in recorded[0] if name == "reward" or name.startswith("info.")]
    sizes = [sum(float(facts[name].abs().sum()) for name in names) for facts in recorded]
    rows = sorted(range(len(sizes)), key=lambda row: -sizes[row])[:REPLAYED]
    # The last is played first too, so that none is the first of its world.
    for row in (rows[-1], *rows):
        replay = play(row)
        states = replay.start
        for action in recorded[row]["action"][1:]:
            states = replay.step(states, action[None].to(states.device))
        differs = _first_difference(recorded[row], replay.recorded(0))
        if differs is not None:
            return differs
    return None


def _first_difference(recorded: Mapping[str, Tensor], replayed: Mapping[str, Tensor]) -> str | None:
    for step in range(len(recorded["reward"])):
        for name, values in recorded.items():
            if name == "action":
                continue
            if step >= len(replayed[name]) or not torch.equal(values[step], replayed[name][step]):
                moment = f"step {step}" if step else "the reset"
                return f"{name} of {moment}"
    return None
