"""Weights that travel between two processes: by NCCL and CUDA IPC on GPUs, otherwise by gloo and files."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from benchmarks.gpu.device import Place
from benchmarks.gpu.models import TINY, build
from lightning_cgrpo import IPCPush, NCCLPush
from lightning_cgrpo.samplers.vllm.nccl_push import UNIQUE_ID
from lightning_cgrpo.samplers.vllm.push import WeightPush
from lightning_cgrpo.samplers.vllm.weights import named_weights
from tests.samplers.fake_transfer import BroadcastWorker, DistantWorker, FilePush, GlooPush, IPCWorker


class NCCLWorker(BroadcastWorker):
    """vLLM's worker on the second GPU: it joins by the group's id alone."""

    device = "cuda:1"

    def init(self, rank_offset: int, world_size: int, nccl_unique_id_b64: str, packed: bool) -> None:
        torch.cuda.set_device(1)
        store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # type: ignore[attr-defined]
        store.set(UNIQUE_ID, base64.b64decode(nccl_unique_id_b64))
        self.group = dist.ProcessGroupNCCL(store, rank_offset, world_size, dist.ProcessGroupNCCL.Options())
        self.group.allreduce([torch.zeros(1, device=self.device)]).wait()


class CUDAWorker(IPCWorker):
    """vLLM's worker on the same GPU."""

    def gpu(self) -> str:
        return str(torch.cuda.get_device_properties(0).uuid)

    def opened(self, arguments: list[Any]) -> Tensor:
        from torch.multiprocessing.reductions import rebuild_cuda_tensor

        tensor: Tensor = rebuild_cuda_tensor(*arguments)
        return tensor


class WorkerClient:
    """A vLLM server's HTTP, as far as a push asks, in front of one worker."""

    def __init__(self, worker: DistantWorker) -> None:
        self.worker, self.received = worker, {}

    def get(self, path: str) -> dict[str, Any]:
        return {"world_size": 1}

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if path == "/init_weight_transfer_engine":
            self.worker.init(**body["init_info"])
        elif path == "/update_weights":
            self.received = self.worker.receive(**body["update_info"])
        return {}


def pushed(push: WeightPush, kind: type, device: torch.device) -> dict[str, Any]:
    """Two pushes of a small model's weights to a worker in another process; the second has other weights."""
    policy = build(TINY, 2048, device)
    worker = DistantWorker(0, mp.get_context("spawn").Process, kind)
    client = WorkerClient(worker)
    equal = True
    started = time.perf_counter()
    for _ in range(2):
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.1)
        with push.prepared(policy) as send:
            send(client)  # type: ignore[arg-type]
            expected = {name: weight.cpu() for name, weight in named_weights(policy).items()}
        equal &= expected.keys() == client.received.keys()
        equal &= all(torch.equal(client.received[name], weight) for name, weight in expected.items())
    worker.close()
    return {"equal": equal, "by": type(push).__name__, "seconds": round(time.perf_counter() - started, 2)}


def nccl_id() -> int:
    """Bytes of the id that torch mints for a group of one process on the first GPU."""
    push = NCCLPush()
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # type: ignore[attr-defined]
    push._join_group(store, 1, torch.device("cuda", 0))
    return len(base64.b64decode(push._group_address(store, Future())["nccl_unique_id_b64"]))


def processes(where: Place) -> dict[str, Any]:
    """Pushes between two processes; NCCL needs two GPUs, IPC one."""
    parts: dict[str, Any] = {}
    device = torch.device("cpu") if where.pretended else where.device
    two = torch.cuda.device_count() > 1
    if where.pretended:
        parts["ipc"] = pushed(FilePush(), IPCWorker, device)
    else:
        parts["ipc"] = pushed(IPCPush(), CUDAWorker, device)
        parts["bytes_of_the_id"] = nccl_id()
    if two:
        parts["broadcast"] = pushed(NCCLPush(), NCCLWorker, device)
    else:
        parts["broadcast"] = pushed(GlooPush(), BroadcastWorker, torch.device("cpu"))
    passed = all(part["equal"] for part in parts.values() if isinstance(part, dict))
    return {"passed": passed and parts.get("bytes_of_the_id", 128) == 128, **parts}
