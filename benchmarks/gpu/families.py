"""Waits of the host in a training pass of small vision-language models."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.device import Place
from benchmarks.gpu.waits import counting
from lightning_cgrpo import VisionLanguagePolicy
from lightning_cgrpo.core.rollout import Rollouts

FAMILIES = ("qwen3_vl", "internvl")


def family_waits(where: Place) -> dict[str, Any]:
    """By family, and by whether prompts are shared: waits of a pass and its gradients for two images and a text."""
    from tests.policies import tiny_families

    by_family = {}
    image = torch.arange(32 * 64 * 3, dtype=torch.uint8).view(32, 64, 3).numpy()
    content = [{"type": "image", "image": image}, {"type": "image", "image": image[:, :32]}]
    prompts = [[{"role": "user", "content": content}], "No image."]
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            directory = str(tiny_families.write(Path(folder) / "model", family))
            for shared in (True, False):
                policy = VisionLanguagePolicy(directory, share_prompts=shared)
                with where.device:
                    policy.load()
                inputs = policy.read_prompts(prompts)
                actions = torch.arange(40, device=where.device).view(2, 2, 10)
                rollouts = Rollouts(actions, torch.ones_like(actions, dtype=torch.bool), inputs).to(where.device)
                examples = policy.examples(rollouts)
                policy(examples)  # the first pass compiles and allocates
                with counting(where.waits) as lines:
                    policy(examples).log_probs.sum().backward()
                by_family[f"{family}, {'shared' if shared else 'padded'}"] = lines.total()
    return by_family
