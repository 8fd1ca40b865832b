"""Weights and groups that travel between two processes: by NCCL and CUDA IPC on GPUs, otherwise by gloo and files."""

from __future__ import annotations

import base64
import json
import os
import socket
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from benchmarks.gpu.device import Place
from benchmarks.gpu.throughput import TINY, build
from lightning_cgrpo import IPCPush, NCCLPush
from lightning_cgrpo.core.rollout import Examples
from lightning_cgrpo.grpo.exchange import Exchange, group_tokens
from lightning_cgrpo.grpo.minibatches import Share, partition
from lightning_cgrpo.samplers.vllm.nccl_push import UNIQUE_ID
from lightning_cgrpo.samplers.vllm.push import WeightPush
from lightning_cgrpo.samplers.vllm.weights import named_weights
from tests.samplers.fake_transfer import BroadcastWorker, DistantWorker, FilePush, GlooPush, IPCWorker

GROUPS, GROUP, TOKENS = 32, 16, 512
"""Groups of answers, answers in a group, and tokens of an answer, of each process in the exchange."""


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
    push._joined(store, 1, torch.device("cuda", 0))
    return len(base64.b64decode(push._rendezvous(store, Future())["nccl_unique_id_b64"]))


def exchange(rank: int, backend: str, folder: str, port: int) -> None:
    """One of two processes that exchange groups, and send values back; the first one leaves the times."""
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group(backend, rank=rank, world_size=2)
    draw = torch.Generator().manual_seed(rank)
    longest = TOKENS if rank else TOKENS // 4  # the second process has most of the tokens
    mask = torch.arange(TOKENS) < torch.randint(1, longest, (GROUPS * GROUP, 1), generator=draw)
    prompts = torch.ones(GROUPS, 64, dtype=torch.bool)
    values = torch.rand(mask.shape, generator=draw)
    group = torch.arange(GROUPS).repeat_interleave(GROUP)
    shared = {"prompt_ids": prompts.long(), "prompt_mask": prompts}
    sampled = Examples({}, mask.long(), mask, group, shared, {"values": values}).to(device)
    times = []
    for _ in range(3):
        dist.barrier()
        started = time.perf_counter()
        share = Share.of(sampled, GROUP)
        plan = Exchange.balancing(sampled, share, [partition(share, None, 0, 0, 0)], shares_prompts=True)
        moved = plan.moved(sampled)
        tokens = sum(group_tokens(moved, GROUP, True))  # waits for the device
        times.append(time.perf_counter() - started)
    equal = torch.equal(plan.returned({"values": moved.targets["values"]}, TOKENS)["values"], sampled.targets["values"])
    result = {"equal": equal, "tokens": tokens, "before": sum(group_tokens(sampled, GROUP, True)), "seconds": times[-1]}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    dist.destroy_process_group()


def exchanged(backend: str) -> dict[str, Any]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(exchange, (backend, folder, port), nprocs=2)
        first, second = (json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(2))
    return {
        "equal": first["equal"] and second["equal"],
        "by": backend,
        "tokens_before": [first["before"], second["before"]],
        "tokens": [first["tokens"], second["tokens"]],
        "seconds": round(first["seconds"], 4),
    }


def processes(where: Place) -> dict[str, Any]:
    """Pushes and an exchange between two processes; NCCL needs two GPUs, IPC one."""
    parts: dict[str, Any] = {}
    device = torch.device("cpu") if where.pretended else where.device
    two = torch.cuda.device_count() > 1
    parts["exchange"] = exchanged("nccl" if two else "gloo")
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
