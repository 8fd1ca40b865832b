"""The device that a part measures: the GPU, or a pretended GPU where there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Place:
    """Where a part runs.

    Args:
        device: of the tensors.
        options: of the command line, which send a run there.
        waits: of the host so far, by kind and line; filled by the pretended device.
    """

    device: torch.device
    options: tuple[str, ...]
    waits: Counter[Any] = field(default_factory=Counter)

    @property
    def pretended(self) -> bool:
        return self.device.type != "cuda"


@contextmanager
def place() -> Iterator[Place]:
    """The first GPU; without a GPU, the pretended device of the tests."""
    if torch.cuda.is_available():
        yield Place(torch.device("cuda", 0), ("--trainer.accelerator=gpu", "--trainer.devices=1"))
        return
    from tests.pretended_device import DEVICE, NAME, pretending

    with pretending() as machine:
        yield Place(DEVICE, (f"--trainer.accelerator={NAME}", f"--trainer.strategy={NAME}"), machine.waits)
