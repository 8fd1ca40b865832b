"""A plugin for a CPU build of vLLM: its engines of weight transfer, with gloo for NCCL and files for a GPU's memory.

    pip install tests/samplers/vllm_plugin     # into the server's environment

The engines, the HTTP server and the loading of weights stay vLLM's own. `GlooPush` and `FilePush` are the other side.
"""

import math
from datetime import timedelta
from types import SimpleNamespace

import torch
import torch.distributed as dist


class Communicator:
    """`PyNcclCommunicator`, as far as a worker uses it."""

    def __init__(self, group):
        self.group = group

    def broadcast(self, tensor, src, stream=None):
        self.group.broadcast([tensor]).wait()

    def destroy(self):
        """Nothing is left to do."""


def joined(init_info, parallel_config):
    number = parallel_config.data_parallel_index * parallel_config.world_size + parallel_config.rank
    store = dist.TCPStore(init_info.master_address, init_info.master_port, None, False)
    rank = init_info.rank_offset + number
    group = dist.ProcessGroupGloo(store, rank, init_info.world_size, timedelta(seconds=60))
    group.allreduce([torch.zeros(1)]).wait()
    return Communicator(group)


def rebuilt(cls, shape, stride, offset, storage, dtype, device, path):
    return torch.from_file(path, shared=True, size=math.prod(shape), dtype=dtype).view(shape)


def register():
    """Called by vLLM in each of its processes."""
    from vllm.distributed.weight_transfer import ipc_engine, nccl_engine

    nccl_engine.worker_init_process_group = joined
    ipc_engine.rebuild_cuda_tensor = rebuilt
    torch.cuda.current_stream = lambda *_: None
    torch.cuda.get_device_properties = lambda _: SimpleNamespace(uuid="GPU-0")
