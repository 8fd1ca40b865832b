"""Any Gymnasium environment as an environment of this package."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.spaces import Box, Discrete

from lightning_cgrpo.errors import UserError, expect, first_line
from lightning_cgrpo.rollout import PromptGroups, Rollouts, Signals
from lightning_cgrpo.samplers.environment import Environment
from lightning_cgrpo.tasks.gymnasium.episodes import GymnasiumEpisodes
from lightning_cgrpo.tasks.gymnasium.render import film_strips
from lightning_cgrpo.tasks.gymnasium.worlds import World, Worlds, WorldsApart, WorldsHere
from lightning_cgrpo.tasks.task import Renderer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Wrapper = str | dict[str, dict[str, Any]] | Callable[[World], World]


class Gymnasium(Environment, Renderer):
    """Worlds made by ``gymnasium.make``. A prompt is the seed of a reset, so that a group starts from the same state.

    Worlds are never saved: a resumed run and `render` replay them from seeds. A warning says that a world's reset
    depends on more than its seed.

    Args:
        id: registered name, with its module if importing gymnasium does not register it: ``minigrid:MiniGrid-…``.
        kwargs: of ``gymnasium.make``.
        max_steps: truncates episodes; by default the limit that the environment registered.
        wrappers: applied in order: an import path, or ``{path: arguments}``.
        infos: numbers in ``info`` to report as ``info.NAME``, 0 in steps without.
        processes: step every world in a process of its own, by `gymnasium.vector.AsyncVectorEnv`.
        time_limit: seconds for a step of all worlds; needs `processes`, because Python cannot interrupt a world.

    Raises:
        UserError: the environment cannot be made, or its spaces are not supported.
    """

    def __init__(
        self,
        id: str,
        kwargs: dict[str, Any] | None = None,
        max_steps: int | None = None,
        wrappers: Sequence[Wrapper] = (),
        infos: Sequence[str] | None = (),
        processes: bool = False,
        time_limit: float | None = None,
    ) -> None:
        expect(max_steps is None or max_steps >= 1, "max_steps", "at least 1", max_steps)
        expect(time_limit is None or processes, "time_limit", "None unless `processes` is true", time_limit)
        self.id, self.kwargs, self.infos = id, dict(kwargs or {}), tuple(infos or ())
        if max_steps is not None:
            self.kwargs["max_episode_steps"] = max_steps
        self._wrappers = [_imported(wrapper) for wrapper in wrappers]
        world = self.make()
        limit = max_steps or (world.spec.max_episode_steps if world.spec is not None else None)
        if limit is None:
            raise UserError(f"Expected argument `max_steps` for '{id}', which registers no limit, but got None.")
        self.max_steps = limit
        self._space = self._observations(world)
        self._read_actions(world)
        world.close()
        self._worlds: Worlds = WorldsApart(self.make, id, time_limit) if processes else WorldsHere(self.make, id)

    def make(self, **kwargs: Any) -> World:
        """A new world with its wrappers; arguments replace those of `kwargs`."""
        try:
            world: World = gymnasium.make(self.id, **{**self.kwargs, **kwargs})
            for wrap, arguments in self._wrappers:
                world = wrap(world, **arguments)
        except Exception as error:
            unregistered = isinstance(error, gymnasium.error.UnregisteredEnv)
            hint = " Try MODULE:ID, with a module that registers the environment." if unregistered else ""
            if "render_mode" in kwargs:
                hint = (
                    " Pictures need a world that takes `render_mode` and names it in metadata['render_modes'], try "
                    "--callbacks.pictures=null for none."
                )
            raise UserError(
                f"Expected `gymnasium.make` to make '{self.id}', but it raised {type(error).__name__}: "
                f"{first_line(error)}.{hint}"
            ) from error
        return world

    def reset(self, prompts: PromptGroups, group_size: int) -> GymnasiumEpisodes:
        seeds = prompts.column("seed", "Gymnasium").tolist()
        options = prompts.columns.get("options", [None] * len(seeds))
        observations = self._worlds.reset(
            [seed for seed in seeds for _ in range(group_size)],
            [chosen for chosen in options for _ in range(group_size)],
        )
        episodes = GymnasiumEpisodes(
            self._worlds, observations, self._space, self._first, self.infos, self.max_steps, prompts.index.device
        )
        starts = episodes.observe(episodes.start).unflatten(0, (len(seeds), group_size))
        if not bool((starts == starts[:, :1]).all()):
            warnings.warn(
                f"Worlds '{self.id}' that were reset with the same seed start differently. Groups compare answers "
                "from different states, and a resumed run does not equal an uninterrupted run. Try a world that draws "
                "all randomness from self.np_random.",
                stacklevel=2,
            )
        return episodes

    def render(self, prompts: PromptGroups, rollouts: Rollouts, signals: Signals, row: int) -> Figure:
        """Draw at most four answers as film strips, by `gymnasium.Env.render` of a new world."""
        return film_strips(self.make, prompts, rollouts, row, self._first)

    def _observations(self, world: World) -> Box:
        space = world.observation_space
        if not isinstance(space, Box):
            raise UserError(
                f"Expected observations of '{self.id}' to be a Box, but got {space}, try wrappers: "
                "[gymnasium.wrappers.FlattenObservation]."
            )
        self.observation_size = space.shape[0] if len(space.shape) == 1 else None
        return space

    def _read_actions(self, world: World) -> None:
        space, self._first = world.action_space, 0
        if isinstance(space, Discrete):
            self.actions, self._first = int(space.n), int(space.start)
        elif isinstance(space, Box) and len(space.shape) == 1:
            self.action_size = space.shape[0]
            bounds = tuple(map(float, space.low)), tuple(map(float, space.high))
            limited = [math.isfinite(number) for bound in bounds for number in bound]
            if all(limited):
                self.low, self.high = bounds
            elif any(limited):
                raise UserError(
                    f"Expected actions of '{self.id}' to be bounded on all sides or on none, but got {space}, try "
                    "wrappers: [{gymnasium.wrappers.RescaleAction: {min_action: -1, max_action: 1}}]."
                )
        else:
            raise UserError(
                f"Expected actions of '{self.id}' to be Discrete or a Box with one dimension, but got {space}, try "
                "a wrapper."
            )


def _imported(wrapper: Wrapper) -> tuple[Callable[..., World], dict[str, Any]]:
    if callable(wrapper):
        return wrapper, {}
    path, arguments = (wrapper, {}) if isinstance(wrapper, str) else next(iter(wrapper.items()))
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name), dict(arguments or {})
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"Expected a wrapper's import path, but got '{path}', which fails: {error}.") from error
