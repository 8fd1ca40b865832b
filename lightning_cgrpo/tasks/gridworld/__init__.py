"""The paper's gridworld."""

from lightning_cgrpo.tasks.gridworld.environment import Gridworld
from lightning_cgrpo.tasks.gridworld.prompts import Layouts
from lightning_cgrpo.tasks.gridworld.render import GridworldRenderer
from lightning_cgrpo.tasks.gridworld.task import GridworldTask

__all__ = ["Gridworld", "GridworldRenderer", "GridworldTask", "Layouts"]
