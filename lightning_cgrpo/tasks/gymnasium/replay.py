"""Detection of state and randomness that a reset from a seed leaves in a world."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.tasks.gymnasium.episodes import GymnasiumEpisodes
from lightning_cgrpo.tasks.gymnasium.worlds import World, reset_world, step_world

REPLAYED = 4
"""Episodes that are replayed."""
STEPS = 200
"""Longest episode that looks for the wrapper."""

Play = Callable[[int], GymnasiumEpisodes]
"""Resets a spare world, always the same, from the seed and options of an episode."""


def difference(episodes: GymnasiumEpisodes, play: Play) -> str | None:
    """The first value of an episode that differs in a world that has played others, as "reward of step 3".

    The `REPLAYED` episodes with the largest rewards and infos are replayed, since zeros and short episodes tell little.

    Args:
        episodes: all of them ended.
    """
    recorded = [episodes.recorded(row) for row in range(len(episodes.seeds))]
    numbers = [name for name in recorded[0] if name == "reward" or name.startswith("info.")]
    told = [sum(float(facts[name].abs().sum()) for name in numbers) for facts in recorded]
    rows = sorted(range(len(told)), key=lambda row: -told[row])[:REPLAYED]
    # The last is played first too, so that none is the first of its world.
    for row in (rows[-1], *rows):
        replay = play(row)
        states = replay.start
        for action in recorded[row]["action"][1:]:
            states = replay.step(states, action[None].to(states.device))
        if differs := _first_difference(recorded[row], replay.recorded(0)):
            return differs
    return None


def _first_difference(recorded: Mapping[str, Tensor], replayed: Mapping[str, Tensor]) -> str | None:
    for step in range(len(recorded["reward"])):
        for name, values in recorded.items():
            if name == "action":
                continue
            if step >= len(replayed[name]) or not torch.equal(values[step], replayed[name][step]):
                return f"{name} of {f'step {step}' if step else 'the reset'}"
    return None


def guilty(makes: Sequence[Callable[[], World]], infos: Sequence[str]) -> int | None:
    """The first of several worlds, each with a wrapper more, that replays an episode differently; None if none does.

    Every world plays the same random actions three times.
    """
    for number, make in enumerate(makes):
        world = make()
        try:
            first, *others = (_played(world, infos) for _ in range(3))
        finally:
            world.close()
        if any(first != other for other in others):
            return number
    return None


def _played(world: World, infos: Sequence[str]) -> list[tuple[Any, ...]]:
    """Moments, whose observations are bytes, because the world may overwrite its arrays."""
    played, moment = [], reset_world(world, infos, 0, None)
    world.action_space.seed(0)
    while True:
        played.append((moment.observation.tobytes(), *moment[1:]))
        if len(played) > STEPS or moment.terminated or moment.truncated:
            return played
        moment = step_world(world, infos, world.action_space.sample())
