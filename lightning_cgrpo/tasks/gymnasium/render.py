"""Film strips of episodes, drawn by the worlds themselves."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_cgrpo.core.copies import copied
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts
from lightning_cgrpo.tasks.gymnasium.worlds import World

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPISODES, FRAMES = 4, 6


def film_strips(make: Callable[..., World], prompts: PromptGroups, rollouts: Rollouts, row: int) -> Figure:
    """Frames of the first answers to prompt `row`, replayed in a new world from the prompt's seed.

    Args:
        make: makes a world, given a render mode.

    Raises:
        UserError: the world draws no pictures.
    """
    from matplotlib.figure import Figure

    seed = int(prompts.columns["seed"][row])
    start: dict[str, Any] = {"seed": seed, "options": None}
    if "options" in prompts.columns:
        start["options"] = prompts.columns["options"][row]
    count = min(EPISODES, rollouts.mask.shape[1])
    figure = Figure(figsize=(1.6 * FRAMES, 1.8 * count), layout="constrained")
    if not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame would print that it finds no display
    same = True
    world = make(render_mode="rgb_array")
    try:
        for episode, axes in enumerate(figure.subplots(count, FRAMES, squeeze=False)):
            # 1. Replay the answer's actions, and compare what the policy saw.
            mask = rollouts.mask[row, episode].cpu()
            chosen = rollouts.info["action"][row, episode].cpu()[mask].numpy()
            seen = rollouts.inputs["observations"][row, episode].cpu()[mask].numpy()
            moments = np.unique(np.linspace(0, len(chosen), FRAMES).round().astype(int)).tolist()
            frames, replayed = _replay_world(world, start, chosen, moments)
            same = same and np.array_equal(np.asarray(replayed, dtype=seen.dtype), seen)
            # 2. Draw its frames in a row.
            for axis in axes:
                axis.set_axis_off()
            for axis, moment, frame in zip(axes, moments, frames, strict=False):
                axis.imshow(frame)
                axis.set_title(f"step {moment}", fontsize=8)
            rewards = float(rollouts.info["reward"][row, episode].sum())
            axes[0].set_title(f"answer {episode}, return {rewards:.4g}", fontsize=8)
    finally:
        world.close()
    title = f"replayed from seed {seed}"
    if not same:
        title += ", but the replay differs from the episode"
    figure.suptitle(title)
    return figure


def _replay_world(world: World, start: dict[str, Any], actions: Any, moments: list[int]) -> tuple[list[Any], list[Any]]:
    """Frames at `moments`, numbers of steps done, and the observation before each step."""
    observation, _ = world.reset(**copied(start))
    frames = [_draw_frame(world)]
    seen = []
    for moment, action in enumerate(actions, start=1):
        seen.append(observation)
        observation, *_ = world.step(action)
        if moment in moments:
            frames.append(_draw_frame(world))
    return frames, seen


def _draw_frame(world: World) -> Any:
    frame = world.render()
    if not isinstance(frame, np.ndarray):
        raise UserError(f"Expected the world to draw arrays with render_mode 'rgb_array', but got {frame!r:.80}.")
    return frame
