"""All that a run imports, imported once by the server that forks the tests' processes (see forked.py)."""

import importlib

from lightning_cgrpo.cli import command_line  # noqa: F401
from lightning_cgrpo.cli.preparation import import_names

import_names()
# What a run imports when it needs it.
for name in (
    "lightning_cgrpo.policies.vision_language",
    "matplotlib.backends.backend_agg",
    "omegaconf",
    "peft",
    "torch.utils.tensorboard",
    "transformers.models.auto.modeling_auto",
):
    importlib.import_module(name)
