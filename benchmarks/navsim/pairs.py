"""Counterfactual pairs: a scene that an agent enters, and the same scene without it."""

from __future__ import annotations

from dataclasses import replace

from driving_scenes.generator import GeneratedScenes, people
from driving_scenes.generator.human_drive import Obstacles, onward
from driving_scenes.generator.world import PARTS, World
from driving_scenes.scene import Scene
from driving_scenes.source import Scenes, Split
from lightning_cgrpo.tasks.driving.moving_observations import noticed_agents
from navsim_score.route.lane_ahead import lane_ahead

SHORTER = 2.0
"""Meters in 4 s by which the human drives less because of the agent."""
CROWDED = PARTS | {people.crossing: 1.0}
"""Somebody crosses in every world, because most agents that enter don't make the human drive less."""
PAIR = 3
"""Separates the random numbers of pairs from those of other scenes."""


class PairedScenes(GeneratedScenes):
    """Training scenes in twos: an agent enters the lane of the even one, and the odd one has no such agent.

    All else is equal: the road, the other agents, and the ego's place, speed and acceleration. The human is driven
    anew, and drives at least `SHORTER` less in the even scene. So a driver who imitates both has to heed the agent.
    The other splits are those of `GeneratedScenes`.

    Args: see `GeneratedScenes`. With `count` equal to `data.train_prompts`, training shows both scenes of each pair.
    """

    def __init__(self, seed: int = 0, count: int | None = None) -> None:
        super().__init__(seed, count, follow_ups=0)
        self._other: dict[int, Scene] = {}  # scenes that were built with their pair's first shown scene, by index

    def scenes(self, split: Split) -> Scenes[int, Scene]:
        return Scenes(self.indices, self._one) if split == "train" else super().scenes(split)

    def _one(self, index: int) -> Scene:
        if index not in self._other:
            even = index - index % 2
            self._other[even], self._other[even + 1] = self.pair(index // 2)
        return self._other.pop(index)

    def pair(self, number: int) -> tuple[Scene, Scene]:
        """The first drawn world whose human heeds an agent that enters, and this world without such agents."""
        name = f"{self._name('train', number)}_pair"
        attempt = 0
        while True:
            world = World.random(self._random("train", number, PAIR, attempt), CROWDED)
            scene = world.first_scene(name)
            others = without_entering(world, scene)
            if others is not None and others.drive.s[-1] > world.drive.s[-1] + SHORTER:
                return scene, replace(others.first_scene(f"{name}_without"), log=name)
            attempt += 1


def without_entering(world: World, scene: Scene) -> World | None:
    """The world without the agents that enter the lane in its first scene; None if there are none."""
    entering = _first_entering(scene)
    if entering is None:
        return None
    agents = list(world.agents)
    while entering is not None:
        size = scene.agents.sizes[scene.agents.tokens.index(entering)].tolist()
        agents = [agent for agent in agents if list(agent.body.size) != size]
        world = replace(world, agents=agents)
        scene = world.first_scene("")
        entering = _first_entering(scene)
    drive = onward(world.site, Obstacles.of(agents, world.site.path), world.site.s, world.drive.start)
    return replace(world, drive=drive)


def _first_entering(scene: Scene) -> str | None:
    ahead = lane_ahead(scene)
    start = float(ahead.path.project(ahead.road.position))
    entering = noticed_agents(scene, ahead, start)[1]
    return None if entering is None else entering.token
