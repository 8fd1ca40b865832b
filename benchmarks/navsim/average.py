"""The mean of two models' weights (Wortsman et al., 2022), a step of the shipped driver's recipe.

python -m benchmarks.navsim.average FIRST SECOND OUT    # directories; the rest of OUT is copied from SECOND
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"


def average(first: Path, second: Path, out: Path) -> None:
    """Write the mean of two models of equal shapes.

    Raises:
        ValueError: the models have other tensors.
    """
    shutil.copytree(second, out, dirs_exist_ok=True)
    one, other = load_file(first / WEIGHTS), load_file(second / WEIGHTS)
    if {name: t.shape for name, t in one.items()} != {name: t.shape for name, t in other.items()}:
        raise ValueError(f"Expected models of equal tensors, but '{first}' and '{second}' have others.")
    mean = {name: torch.lerp(one[name].float(), weight.float(), 0.5).to(weight.dtype) for name, weight in other.items()}
    save_file(mean, out / WEIGHTS, metadata={"format": "pt"})


if __name__ == "__main__":
    average(*map(Path, sys.argv[1:]))
