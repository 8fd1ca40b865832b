"""Weights through a folder that training and server share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from lightning_cgrpo.core.distributed import world
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.json_client import JSONClient
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.sharding import is_sharded
from lightning_cgrpo.samplers.vllm.push import Send, WeightPush


class FolderPush(WeightPush):
    """Writes a checkpoint, which the server reads; needs no ``--weight-transfer-config``.

    Args:
        folder: by default the system's temporary folder; /dev/shm is fastest.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder

    @contextmanager
    def prepared(self, policy: CausalLMPolicy) -> Iterator[Send]:
        first = world()[0] == 0
        if first and self.folder is not None and not Path(self.folder).is_dir():
            raise UserError(f"Expected folder to exist, but got '{self.folder}', try creating the folder.")
        folder = tempfile.TemporaryDirectory(prefix="weights-", dir=self.folder) if first else nullcontext("")
        with folder as directory:
            if first:
                write(policy, directory)

            def send(client: JSONClient) -> None:
                client.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": directory}})

            yield send


def write(policy: CausalLMPolicy, directory: str) -> None:
    """Write the policy's checkpoint, adapters merged in, without a progress bar."""
    from transformers.utils import logging

    # A sharded policy is whole in a rollout, but transformers would save its shards.
    named = {name: parameter.detach() for name, parameter in policy.named_parameters()}
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        policy.save_pretrained(directory, merge=True, weights=named if is_sharded(policy) else None)
    finally:
        if shown:
            logging.enable_progress_bar()
