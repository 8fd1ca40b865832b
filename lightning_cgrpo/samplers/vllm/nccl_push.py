"""Weights by NCCL broadcast, as vLLM 0.33 documents it for trainers that don't import vLLM.

Source: https://docs.vllm.ai/en/latest/examples/rl/rlhf_http_nccl_no_vllm/ and vllm/distributed/weight_transfer/
nccl_engine.py. The first training process is rank 0 of a group with the server's workers. It mints the group's id,
sends the id over HTTP, and joins in the one-element sum with which a worker's communicator begins.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined] # not in its stubs

from lightning_cgrpo.core.distributed import world
from lightning_cgrpo.core.errors import UserError, expect
from lightning_cgrpo.core.json_client import JSONClient
from lightning_cgrpo.core.user_code import call_in_thread
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.samplers.vllm.push import Send, WeightPush, describe_weights
from lightning_cgrpo.samplers.vllm.weights import named_weights

UNIQUE_ID = "0"
"""The store's key of the id that torch mints for a group, a detail of torch on which vLLM's example relies, too."""


class NCCLPush(WeightPush):
    """Broadcasts the weights from GPU to GPU; training and server have separate GPUs, and the same release of NCCL.

    ``vllm serve`` needs ``--weight-transfer-config '{"backend": "nccl"}'``.

    Args:
        timeout: seconds until a broadcast fails.
    """

    backend = "nccl"

    def __init__(self, timeout: float = 600.0) -> None:
        expect(timeout > 0, "timeout", "greater than 0", timeout)
        self.timeout = timedelta(seconds=timeout)
        self._group: Any = None  # opened by the first push

    @contextmanager
    def prepared(self, policy: CausalLMPolicy) -> Iterator[Send]:
        self._check_device(policy.device)
        weights = named_weights(policy) if world()[0] == 0 else {}

        def send(client: JSONClient) -> None:
            if self._group is None:
                self._group = self._open_group(client, policy.device)
            client.post("/start_weight_update", {})
            # In a thread that may be left behind, because a broadcast never ends if the server refuses the update.
            sent = call_in_thread(
                broadcast, {"group": self._group, "weights": weights, "device": policy.device}, "weights for vLLM"
            )
            try:
                client.post("/update_weights", {"update_info": describe_weights(weights)})
                sent.result(self.timeout.total_seconds())
            except BaseException:
                group = self._group
                self._group = None
                group.abort()
                raise
            client.post("/finish_weight_update", {})

        yield send

    def _open_group(self, client: JSONClient, device: torch.device) -> Any:
        size = 1 + int(client.get("/get_world_size")["world_size"])
        store = TCPStore("127.0.0.1", 0, None, True, self.timeout, wait_for_workers=False)
        # In a thread that may be left behind, because NCCL waits without end for workers that don't join.
        opened = call_in_thread(self._join_group, {"store": store, "size": size, "device": device}, "group with vLLM")
        info = {**self._group_address(store, opened), "rank_offset": 1, "world_size": size, "packed": False}
        client.post("/init_weight_transfer_engine", {"init_info": info})
        return opened.result(self.timeout.total_seconds())

    def _join_group(self, store: TCPStore, size: int, device: torch.device) -> Any:
        group = self._make_group(store, size)
        group.allreduce([torch.zeros(1, device=device)]).wait()
        return group

    # --- NCCL, which the tests replace by gloo

    def _check_device(self, device: torch.device) -> None:
        if device.type != "cuda" or not dist.is_nccl_available():
            raise UserError(f"Expected the policy on a GPU, and NCCL, for NCCLPush, but got {device}, try FolderPush.")

    def _make_group(self, store: TCPStore, size: int) -> Any:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self.timeout
        return dist.ProcessGroupNCCL(store, 0, size, options)

    def _group_address(self, store: TCPStore, opened: Future[Any]) -> dict[str, Any]:
        """How workers find the group."""
        while not store.check([UNIQUE_ID]):
            if opened.done():
                opened.result()  # an error
            time.sleep(0.01)
        return {"nccl_unique_id_b64": base64.b64encode(store.get(UNIQUE_ID)).decode()}


def broadcast(group: Any, weights: Mapping[str, Tensor], device: torch.device) -> None:
    """Send tensors from rank 0 in their order; the device holds a single tensor of those on the CPU at a time."""
    for weight in weights.values():
        group.broadcast([weight.to(device).contiguous()]).wait()
