"""Weights by CUDA IPC, as vLLM 0.33 documents it for trainers that don't import vLLM.

Source: https://docs.vllm.ai/en/latest/examples/rl/rlhf_http_ipc_no_vllm/ and vllm/distributed/weight_transfer/
ipc_engine.py. A handle lets a worker open the memory of a tensor on the worker's own GPU.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from lightning_cgrpo.core.distributed import gather_objects
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.json_client import JSONClient
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.samplers.vllm.push import Send, WeightPush, describe_weights
from lightning_cgrpo.samplers.vllm.weights import named_weights


class IPCPush(WeightPush):
    """Lets the server read the weights in the memory of training; each GPU has a process of training and of the server.

    ``vllm serve`` needs ``--weight-transfer-config '{"backend": "ipc"}'``, and VLLM_ALLOW_INSECURE_SERIALIZATION=1 in
    its environment, because handles are pickled.
    """

    backend = "ipc"

    @contextmanager
    def prepared(self, policy: CausalLMPolicy) -> Iterator[Send]:
        gpu = self._gpu_name(policy.device)
        weights = {name: weight.to(policy.device).contiguous() for name, weight in named_weights(policy).items()}
        # The handles of each weight, by GPU: a worker takes those of its own GPU.
        own_handles = [self._weight_handle(weight) for weight in weights.values()]
        handles: list[dict[str, tuple[Any, ...]]] = [{} for _ in weights]
        for process_gpu, process_handles in gather_objects((gpu, own_handles)):
            for of_weight, handle in zip(handles, process_handles, strict=True):
                of_weight[process_gpu] = handle

        def send(client: JSONClient) -> None:
            client.post("/init_weight_transfer_engine", {"init_info": {"packed": False}})
            client.post("/start_weight_update", {})
            pickled = base64.b64encode(pickle.dumps(handles)).decode()
            update = {**describe_weights(weights), "ipc_handles_pickled": pickled}
            client.post("/update_weights", {"update_info": update})
            client.post("/finish_weight_update", {})

        yield send
        self._free_handles()

    # --- CUDA, which the tests replace

    def _gpu_name(self, device: torch.device) -> str:
        if device.type != "cuda":
            raise UserError(f"Expected the policy on a GPU for IPCPush, but got {device}, try FolderPush.")
        torch.cuda.synchronize(device)  # another process reads the weights next
        return str(torch.cuda.get_device_properties(device).uuid)

    def _weight_handle(self, weight: Tensor) -> tuple[Any, ...]:
        """The arguments of torch's `rebuild_cuda_tensor`, which opens the weight in another process."""
        return reduce_tensor(weight)[1]

    def _free_handles(self) -> None:
        torch.cuda.ipc_collect()
