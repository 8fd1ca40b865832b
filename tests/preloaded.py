"""All that a run imports, imported once by the server that forks the tests' processes (see forked.py)."""

import gc
import importlib

gc.disable()  # What is imported stays, here and in every fork.

from lightning_cgrpo.cli import command_line  # noqa: E402, F401
from lightning_cgrpo.cli.preparation import import_names  # noqa: E402

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
gc.freeze()
gc.enable()
