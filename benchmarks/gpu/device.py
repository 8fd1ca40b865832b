"""The measured device: a GPU, or else a pretended GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Place:
    """A part's device.

    Args:
        device: of the tensors.
        options: command-line options that select the device.
        waits: the host's waits by kind and line, counted by the pretended device.
    """

    device: torch.device
    options: tuple[str, ...]
    waits: Counter[Any] = field(default_factory=Counter)

    @property
    def pretended(self) -> bool:
        return self.device.type != "cuda"


@contextmanager
def place() -> Iterator[Place]:
    """The first GPU, or else the tests' pretended device."""
    if torch.cuda.is_available():
        yield Place(torch.device("cuda", 0), ("--trainer.accelerator=gpu", "--trainer.devices=1"))
        return
    from tests.pretended_device import DEVICE, NAME, pretending

    with pretending() as machine:
        yield Place(DEVICE, (f"--trainer.accelerator={NAME}", f"--trainer.strategy={NAME}"), machine.waits)
