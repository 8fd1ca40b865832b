"""Weights through a folder that training and server share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch

from lightning_cgrpo.core.distributed import world
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.json_client import JSONClient
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.samplers.vllm.push import Send, WeightPush
from lightning_cgrpo.samplers.vllm.weights import named_weights, served_dtype


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
        folder: AbstractContextManager[str] = nullcontext("")
        if first:
            folder = tempfile.TemporaryDirectory(prefix="weights-", dir=self.folder)
        with folder as directory:

            def send(client: JSONClient) -> None:
                write_weights(policy, Path(directory), served_dtype(client))
                client.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": directory}})

            yield send


def write_weights(policy: CausalLMPolicy, folder: Path, dtype: torch.dtype | None) -> None:
    """Write the policy's weights, adapters merged in, and its configuration.

    Matrices are written in the server's dtype if it has fewer bytes, because the server would round them anyway.
    Vectors stay as they are: they are small, and servers keep some of them in float32.

    Args:
        dtype: of the server; None if unknown.
    """
    from safetensors.torch import save_file

    written = {}
    for name, weight in named_weights(policy).items():
        is_rounded = dtype is not None and weight.ndim >= 2 and dtype.itemsize < weight.element_size()
        written[name] = weight.to("cpu", dtype if is_rounded else None).contiguous()
    save_file(written, folder / "model.safetensors", metadata={"format": "pt"})
    policy.model.config.save_pretrained(folder)
