"""Workers of a fake vLLM server, which receive weights as those of vLLM 0.33 do: by gloo for NCCL, by files for memory.

Names, orders and refusals are those of vllm/distributed/weight_transfer and vllm/v1/worker/gpu_worker.py.
"""

import base64
import pickle
import tempfile
from datetime import timedelta
from multiprocessing import Pipe
from pathlib import Path

import torch
import torch.distributed as dist

from lightning_cgrpo.samplers.vllm.ipc_push import IPCPush
from lightning_cgrpo.samplers.vllm.nccl_push import NCCLPush
from tests.samplers.vllm_plugin.without_gpus import rebuilt

GPU = "GPU-0"
DEVICE_INDEX = 6
"""Of the arguments of `rebuild_cuda_tensor`; a worker writes its own device there."""


class GlooPush(NCCLPush):
    """`NCCLPush` on a CPU: everything but the backend and its rendezvous, which is over the store."""

    def _check_device(self, device):
        assert device.type == "cpu"

    def _make_group(self, store, size):
        return dist.ProcessGroupGloo(store, 0, size, self.timeout)

    def _group_address(self, store, opened):
        return {"master_address": "127.0.0.1", "master_port": store.port}


class FilePush(IPCPush):
    """`IPCPush` on a CPU: a handle opens a file, where CUDA's opens the memory of a GPU."""

    def __init__(self):
        self.own = tempfile.TemporaryDirectory()
        self.folder = Path(self.own.name)

    def _gpu_name(self, device):
        assert device.type == "cpu"
        return GPU

    def _weight_handle(self, weight):
        path = str(self.folder / str(weight.data_ptr()))
        torch.from_file(path, shared=True, size=weight.numel(), dtype=weight.dtype).copy_(weight.flatten())
        return (torch.Tensor, tuple(weight.shape), weight.stride(), 0, torch.UntypedStorage, weight.dtype, 3, path)

    def _free_handles(self):
        for path in self.folder.iterdir():
            path.unlink()


class BroadcastWorker:
    """A worker of ``--weight-transfer-config '{"backend": "nccl"}'``."""

    device = "cpu"

    def __init__(self, number=0):
        self.number, self.group = number, None

    def init(self, rank_offset, world_size, master_address=None, master_port=None, nccl_unique_id_b64=None, **packed):
        assert packed == {"packed": False}
        if nccl_unique_id_b64 is not None:
            assert master_address is None and master_port is None
            assert len(base64.b64decode(nccl_unique_id_b64, validate=True)) == 128
            raise RuntimeError("failed to load the NCCL library for unique-id rendezvous")
        store = dist.TCPStore(master_address, master_port, None, False)
        self.group = dist.ProcessGroupGloo(store, rank_offset + self.number, world_size, timedelta(seconds=20))
        self.group.allreduce([torch.zeros(1)]).wait()

    def receive(self, names, dtype_names, shapes):
        assert len(names) == len(dtype_names) == len(shapes)
        if self.group is None:
            raise RuntimeError("NCCL weight transfer not initialized. Call init_transfer_engine() first.")
        found = {}
        for name, dtype, shape in zip(names, dtype_names, shapes, strict=True):
            found[name] = torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)
            self.group.broadcast([found[name]]).wait()
        return found


class IPCWorker:
    """A worker of ``--weight-transfer-config '{"backend": "ipc"}'``."""

    def __init__(self, number=0):
        self.number = number

    def gpu(self):
        return GPU

    def opened(self, arguments):
        return rebuilt(*arguments)

    def init(self, packed=False):
        assert not packed

    def receive(self, names, dtype_names, shapes, ipc_handles_pickled):
        handles = pickle.loads(base64.b64decode(ipc_handles_pickled))
        assert isinstance(handles, list) and len(handles) == len(names) == len(dtype_names) == len(shapes)
        found = {}
        for name, dtype, shape, handle in zip(names, dtype_names, shapes, handles, strict=True):
            arguments = list(handle[self.gpu()])
            arguments[DEVICE_INDEX] = 0
            found[name] = self.opened(arguments).clone()
            assert list(found[name].shape) == shape and str(found[name].dtype) == f"torch.{dtype}"
        return found


WORKERS = {"nccl": BroadcastWorker, "ipc": IPCWorker}


def serve(connection, number, kind):
    """A worker in a process of its own: calls and results go through a pipe."""
    torch.set_num_threads(1)
    worker = kind(number)
    while (call := connection.recv()) is not None:
        name, arguments = call
        result = getattr(worker, name)(**arguments)
        connection.send(pickle.dumps({key: tensor.cpu().numpy() for key, tensor in (result or {}).items()}))


class DistantWorker:
    """A worker in another process, which `start` makes as `multiprocessing.Process` does."""

    def __init__(self, number, start, kind=BroadcastWorker):
        self.connection, other = Pipe()
        self.process = start(target=serve, args=(other, number, kind))
        self.process.start()

    def _call(self, name, arguments):
        self.connection.send((name, arguments))
        assert self.connection.poll(60)
        return {key: torch.from_numpy(array) for key, array in pickle.loads(self.connection.recv()).items()}

    def init(self, **info):
        self._call("init", info)

    def receive(self, **info):
        return self._call("receive", info)

    def close(self):
        self.connection.send(None)
        self.process.join(20)
