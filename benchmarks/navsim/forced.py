r"""The ceiling of deciding: what a driver does if it need not see.

    python -m benchmarks.navsim.forced model models/told
    python -m benchmarks.navsim.forced lightning_cgrpo fit -c configs/navsim.yaml \
        -c configs/ablations/navsim/moving.yaml --model.policy.model=models/told \
        --data.worker=false --trainer.logger.name=told
    python -m lightning_cgrpo export -c runs/told/version_0/config.yaml --out models/told-trained
    python -m benchmarks.navsim.forced benchmarks.navsim.braking told.json models/told-trained --start models/told \
        --frames 2 --scenes 500 --seed 31

The driver that names motion before it answers is told what it would have to see: each answer begins with the scene's
true observations, as `MovingObservations` writes them, and the driver goes on with the trajectory. The first command
writes the model, whose chat template begins the answer; the others run a module with such prompts.
docs/results/navsim/README.md has the thresholds of the run, and what it showed.
"""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

from driving_scenes.scene import Scene
from lightning_cgrpo.policies.model_files import PACKAGED
from lightning_cgrpo.tasks.driving import scene_prompts
from lightning_cgrpo.tasks.driving.moving_observations import MovingObservations
from lightning_cgrpo.tasks.driving.prompts import PromptFormat, messages

MODEL = PACKAGED / "driver-moving"
TRUTH = "truth"
"""The role of the message with the observations."""
CHANGES = {
    "{%- for message in messages %}\n": f"""{{%- for message in messages %}}
    {{%- if message['role'] == '{TRUTH}' %}}
        {{{{- '<|im_start|>assistant\\n' + message['content'] }}}}
        {{%- continue %}}
    {{%- endif %}}
""",
    "{%- if add_generation_prompt %}": f"{{%- if add_generation_prompt and messages[-1]['role'] != '{TRUTH}' %}}",
}
"""New pieces of the chat template, by the old."""


def write_model(folder: Path) -> None:
    """Copy the model that names motion, with a template that begins answers."""
    shutil.copytree(MODEL, folder)
    template = folder / "chat_template.jinja"
    text = template.read_text(encoding="utf-8")
    for before, after in CHANGES.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    template.write_text(text, encoding="utf-8")


def told(scene: Scene, form: PromptFormat) -> list[dict[str, Any]]:
    """The messages of a prompt, and the beginning of the answer."""
    return [*messages(scene, form), {"role": TRUTH, "content": f"{MovingObservations()(scene)}\n"}]


if __name__ == "__main__":
    if sys.argv[1] == "model":
        write_model(Path(sys.argv[2]))
    else:
        scene_prompts.messages = told
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
