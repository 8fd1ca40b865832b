"""The ceiling of deciding: another module's run, with the truth about agents in every driving prompt.

    python -m benchmarks.navsim.forced lightning_cgrpo fit -c configs/navsim.yaml --data.worker=false
    python -m lightning_cgrpo export -c runs/navsim/version_0/config.yaml --out models/forced
    python -m benchmarks.navsim.forced benchmarks.navsim.braking forced.json models/forced --scenes 500 --seed 31

After the images, each prompt has a message with the scene's true observations, as `MovingObservations` writes them:
the lane, the agent ahead and its speed, and the agent that will enter the lane. A policy trained with them shows how
much better a driver would decide if it saw all of this.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

from driving_scenes.scene import Scene
from lightning_cgrpo.tasks.driving import scene_prompts
from lightning_cgrpo.tasks.driving.moving_observations import MovingObservations
from lightning_cgrpo.tasks.driving.prompts import PromptFormat, messages


def informed(scene: Scene, form: PromptFormat) -> list[dict[str, Any]]:
    """The messages of a prompt, and the observations, which the chat template calls a message of the role "truth"."""
    return [*messages(scene, form), {"role": "truth", "content": f"{MovingObservations()(scene)}\n"}]


if __name__ == "__main__":
    scene_prompts.messages = informed
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
