"""Any Gymnasium environment as an environment of this package."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.spaces import Box

from lightning_cgrpo.core.copies import copied
from lightning_cgrpo.core.errors import UserError, expect, first_line
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signals
from lightning_cgrpo.core.user_code import UserCode, import_callable
from lightning_cgrpo.samplers.environment import Environment
from lightning_cgrpo.tasks.gymnasium.actions import Actions
from lightning_cgrpo.tasks.gymnasium.episodes import GymnasiumEpisodes, Recording
from lightning_cgrpo.tasks.gymnasium.render import film_strips
from lightning_cgrpo.tasks.gymnasium.replay import difference
from lightning_cgrpo.tasks.gymnasium.together import Vector, WorldsTogether
from lightning_cgrpo.tasks.gymnasium.worlds import World, Worlds, WorldsApart, WorldsHere
from lightning_cgrpo.tasks.task import Renderer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Wrapper = str | dict[str, dict[str, Any]] | Callable[[World], World]


class Gymnasium(Environment, Renderer):
    """Worlds made by ``gymnasium.make``. A prompt is the seed of a reset, so that a group starts from the same state.

    Worlds are never saved: a resumed run and `render` replay them from seeds. After the first episodes, and again after
    2, 4, 8, … resets, some are replayed in a world that played others. A warning names the first value that differs.

    Args:
        id: registered name, with its module if importing gymnasium does not register it: ``minigrid:MiniGrid-…``.
        kwargs: of ``gymnasium.make``.
        max_steps: truncates episodes; by default the limit that the environment registered.
        wrappers: applied in order: an import path, or ``{path: arguments}``.
        infos: numbers in ``info`` to report as ``info.NAME``, 0 in steps without.
        processes: step every world in a forked process of its own.
        time_limit: seconds for a step of all worlds; needs `processes`, because Python cannot interrupt a world.
        vector: a `gymnasium.vector.VectorEnv` that steps all worlds by one call, or its import path. It is made with
            the number of worlds (``num_envs``), `kwargs` and ``max_episode_steps``; its resets take a list of seeds.
            Replays and pictures come from the world `id`, so that a warning tells where both differ.

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
        vector: str | Callable[..., Vector] | None = None,
    ) -> None:
        expect(max_steps is None or max_steps >= 1, "max_steps", "at least 1", max_steps)
        expect(time_limit is None or processes, "time_limit", "None unless `processes` is true", time_limit)
        expect(vector is None or not processes, "vector", "None if `processes` is true", vector)
        self.id = id
        self.kwargs = dict(kwargs or {})
        self.infos = tuple(infos or ())
        if max_steps is not None:
            self.kwargs["max_episode_steps"] = max_steps
        self._wrappers = [_import_wrapper(wrapper) for wrapper in wrappers]
        # 1. Limits and spaces, from a world that is closed again.
        world = self.make()
        limit = max_steps
        if limit is None and world.spec is not None:
            limit = world.spec.max_episode_steps
        if limit is None:
            raise UserError(f"Expected argument `max_steps` for '{id}', which registers no limit, but got None.")
        self.max_steps = limit
        space = self._observation_space(world)
        actions = Actions(world.action_space, id)
        self.actions = actions.count
        self.action_size = actions.size
        self.low = actions.low
        self.high = actions.high
        self._recording = Recording(space, actions, self.infos, limit)
        world.close()
        # 2. The worlds that play: in this process, each in its own, or together.
        self._single_worlds: Callable[[], Worlds] = partial(WorldsHere, self.make, id, self.infos)
        if processes:
            self._single_worlds = partial(WorldsApart, self.make, id, self.infos, time_limit)
        self._worlds: Worlds = self._single_worlds()
        self._resets = 0
        self._warned = False
        self.vector = None if vector is None else import_callable(vector, "environment.vector")
        if self.vector is not None:
            self._worlds = WorldsTogether(self.make_vector, id, self.infos)

    def make(self, **kwargs: Any) -> World:
        """A new world with all wrappers; arguments replace those of `kwargs`."""
        try:
            with UserCode(f"the world '{self.id}'"):
                world: World = gymnasium.make(self.id, **copied({**self.kwargs, **kwargs}))
                _take_costs(world.unwrapped)
                for wrap, arguments in self._wrappers:
                    world = wrap(world, **copied(arguments))
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

    def make_vector(self, count: int) -> Vector:
        """`count` worlds that step together; needs `vector`."""
        assert self.vector is not None
        vector: Vector = self.vector(num_envs=count, **copied({**self.kwargs, "max_episode_steps": self.max_steps}))
        return vector

    def reset(self, prompts: PromptGroups, group_size: int) -> GymnasiumEpisodes:
        seeds: list[int] = []  # of each episode
        options: list[dict[str, Any] | None] = []
        prompt_seeds = prompts.column("seed", "Gymnasium").tolist()
        prompt_options = prompts.columns.get("options", [None] * len(prompt_seeds))
        for seed in prompt_seeds:
            seeds += [seed] * group_size
        for chosen in prompt_options:
            options += [chosen] * group_size
        self._resets += 1
        # Again after 2, 4, 8, … resets, because a world may change only after some episodes.
        checks = not self._warned and self._resets.bit_count() == 1
        episodes = GymnasiumEpisodes(
            self._worlds,
            seeds,
            options,
            self._recording,
            prompts.index.device,
            self._check_worlds if checks else None,
        )
        # The answers of a group must start alike.
        starts = episodes.observe(episodes.start).unflatten(0, (len(prompt_seeds), group_size))
        if not bool((starts == starts[:, :1]).all()):
            self._warn_once(f"Worlds '{self.id}' that were reset with the same seed start differently.")
        return episodes

    def _check_worlds(self, episodes: GymnasiumEpisodes) -> None:
        """Look for entries of ``info`` that no step reported, and replay an episode in a world that played another."""
        if self._resets == 1:
            for name in sorted(episodes.unseen):
                warnings.warn(
                    f"No step of the first episodes of '{self.id}' had info['{name}'], which counts as 0, so that a "
                    "bound on it may always be met. Try another name in environment.infos.",
                    stacklevel=3,
                )
        if self._warned:
            return
        spare = self._single_worlds()

        def reset_spare(row: int) -> GymnasiumEpisodes:
            seeds = [episodes.seeds[row]]
            options = [episodes.options[row]]
            return GymnasiumEpisodes(spare, seeds, options, self._recording, episodes.start.device)

        differs = difference(episodes, reset_spare)
        spare.close()
        if differs is None:
            return
        if self.vector is None:
            self._warn_once(f"Worlds '{self.id}' that replay an episode from its seed differ in the {differs}.")
        else:
            self._warn_once(f"Worlds '{self.id}' that step together differ from a single world in the {differs}.")

    def _warn_once(self, fault: str) -> None:
        if self._warned:
            return
        self._warned = True
        warnings.warn(
            f"{fault} Groups compare answers under different conditions, and a resumed run does not equal an "
            "uninterrupted run. Try a world that draws all randomness from self.np_random, and clears its state in "
            "reset, as its wrappers should.",
            stacklevel=3,
        )

    def render(self, prompts: PromptGroups, rollouts: Rollouts, signals: Signals, row: int) -> Figure:
        """Draw at most four answers as film strips, by `gymnasium.Env.render` of a new world."""
        return film_strips(self.make, prompts, rollouts, row)

    def _observation_space(self, world: World) -> Box:
        space = world.observation_space
        if not isinstance(space, Box):
            raise UserError(
                f"Expected observations of '{self.id}' to be a Box, but got {space}, try wrappers: "
                "[gymnasium.wrappers.FlattenObservation]."
            )
        if len(space.shape) == 1:
            self.observation_size = space.shape[0]
        return space


def _take_costs(world: World) -> None:
    """Move the third of six values of `step`, the cost in Safety-Gymnasium's worlds, into ``info["cost"]``."""
    step = world.step

    def step_with_cost(action: Any) -> Any:
        result: Any = step(action)
        if len(result) != 6:
            world.step = step  # type: ignore[method-assign]
            return result
        observation, reward, cost, terminated, truncated, info = result
        return observation, reward, terminated, truncated, {"cost": cost, **info}

    world.step = step_with_cost  # type: ignore[method-assign]


def _import_wrapper(wrapper: Wrapper) -> tuple[Callable[..., World], dict[str, Any]]:
    """A wrapper's function, and its arguments."""
    if not isinstance(wrapper, dict):
        return import_callable(wrapper, "a wrapper"), {}
    path, arguments = next(iter(wrapper.items()))
    return import_callable(path, "a wrapper"), dict(arguments or {})
