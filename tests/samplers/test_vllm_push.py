"""How weights reach vLLM: each push, adapters, versions, sleep, and weights that do not arrive."""

import base64
import copy
import pickle
import threading
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.policies.adapters import LoRA
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.samplers.vllm import ipc_push, server
from lightning_cgrpo.samplers.vllm.ipc_push import IPCPush
from lightning_cgrpo.samplers.vllm.nccl_push import NCCLPush
from lightning_cgrpo.samplers.vllm.server import VLLMServer
from lightning_cgrpo.samplers.vllm.weights import weights_version
from tests.forked import server as server_of_processes
from tests.samplers import vllm_client
from tests.samplers.fake_transfer import BroadcastWorker, DistantWorker, FilePush, GlooPush
from tests.samplers.vllm_client import WAYS, change, every_way, log_probs_of, make_policy

generate = partial(vllm_client.generate, rows=(0,))
"""Answers to one prompt, which need the weights like many."""


def check_holds(served, policy):
    held = served.engine.model.state_dict()
    assert all(torch.equal(held[name], value) for name, value in policy.model.state_dict().items())


@every_way
def test_weights_are_pushed_once_per_change(engine, served, policy, tmp_path):
    engine.push.folder = tmp_path
    generate(engine, policy)
    for changes in range(1, 4):
        if changes == 3:  # behind the back of the version counters, as averaged weights are swapped in
            policy.model.model.norm.weight.data.mul_(1.01)
        else:
            change(policy)
        generate(engine, policy)
        generate(engine, policy, update=1)
        assert served.pushes() == served.engine.log.count("reset") == 1 + changes
        check_holds(served, policy)
    assert list(tmp_path.iterdir()) == [], "no checkpoint is left"


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float32, 32), (torch.bfloat16, 16), (None, 32)])
def test_a_folder_has_the_matrices_in_the_server_s_dtype(engine, served, policy, dtype, bits):
    """Half the bytes, and the numbers that the server would round to."""
    files, reload_weights = [], served.engine.reload_weights
    served.dtype = dtype

    def read(weights_path):
        files.append(load_file(Path(weights_path) / "model.safetensors"))
        reload_weights(weights_path)

    served.engine.reload_weights = read
    generate(engine, policy)
    (file,) = files
    own = policy.model.state_dict()
    assert file.keys() == own.keys() - {"lm_head.weight"}, "which is tied"
    for name, tensor in file.items():
        assert tensor.dtype.itemsize * 8 == (bits if tensor.ndim == 2 else 32), name
        assert torch.equal(tensor, own[name].to(tensor.dtype)), name


@every_way
def test_adapters_are_merged(engine, served, directory):
    policy = make_policy(directory, lora=LoRA(rank=2))
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(len(name)))
    made = generate(engine, policy)
    exact = log_probs_of(policy, made)
    torch.testing.assert_close(made.sampling_log_probs[made.mask], exact[made.mask], rtol=0, atol=1e-4)
    merged = copy.deepcopy(policy.model).merge_and_unload().state_dict()
    held = served.engine.model.state_dict()
    assert held.keys() == merged.keys() and all(torch.equal(held[name], merged[name]) for name in merged)
    assert any("lora" in name for name, _ in policy.model.named_parameters()), "the policy keeps them"


def test_the_server_knows_the_weights(served, policy):
    """Whoever comes with the same weights finds them there, and with others pushes them."""
    generate(VLLMServer(served.address), policy)
    assert served.version == weights_version(policy)
    generate(VLLMServer(served.address), policy)
    assert served.pushes() == 1
    other = copy.deepcopy(policy)
    change(other)
    generate(VLLMServer(served.address), other)
    assert served.pushes() == 2 and served.version == weights_version(other) != weights_version(policy)


def test_a_failed_push_is_not_taken_for_done(served, policy):
    served.holds_cache = True
    with pytest.raises(UserError, match=r"no other requests, but got some that keep its cache"):
        generate(VLLMServer(served.address), policy)
    assert served.version == "incomplete"
    served.holds_cache = False
    generate(VLLMServer(served.address), policy)
    assert served.pushes() == 2


def test_weights_that_do_not_arrive_are_noticed(engine, served, policy):
    """The weights of one update before differ too little for the check, but the server's are zeros by then."""
    generate(engine, policy)
    served.engine.reload_weights = lambda weights_path: None
    change(policy, 1e-6)
    with pytest.raises(UserError, match=r"log-probabilities that differ by .* per token after the weights were pushed"):
        generate(engine, policy)
    assert served.version == "incomplete"


def test_an_output_layer_that_is_not_pushed_is_noticed(engine, served, policy):
    """A copy of a tied layer, as in vLLM's CPU kernels: zeros do not reach it, and the gap is far below half a nat."""
    generate(engine, policy)
    model = served.engine.model
    head = copy.deepcopy(model.lm_head.weight)

    def without_head(function, *arguments, **named):
        function(*arguments, **named)
        model.lm_head.weight = copy.deepcopy(head)

    for name in ("reload_weights", "zero"):
        setattr(served.engine, name, partial(without_head, getattr(served.engine, name)))
    change(policy, 1e-3)
    generate(engine, policy)
    with torch.no_grad():
        policy.model.get_input_embeddings().weight.mul_(1.05)
    with pytest.raises(UserError, match=r"a layer keeps its old weights.*tie_word_embeddings is false"):
        generate(engine, policy)
    assert served.version == "incomplete"


def test_another_model_is_noticed(tmp_path, serve, policy):
    """With more layers than the checkpoint it takes the weights without a word."""
    deeper = make_tiny_model(tmp_path / "deeper", hidden_size=32, layers=4, context_length=256)
    fake = serve(deeper)
    with torch.no_grad():
        for parameter in fake.engine.model.model.layers[3].mlp.parameters():
            parameter.mul_(50)
    with pytest.raises(UserError, match=r"log-probabilities that differ by .* per token .* serving the policy's model"):
        generate(VLLMServer(fake.address), policy)
    assert fake.version == "incomplete"


def test_a_first_gap_is_another_dtype_or_a_layer_that_keeps_its_weights(served, policy):
    """A resumed run pushes to a server that has the starting weights, and knows no gap of an earlier push."""

    def off(tokens, log_probs, reason):
        return tokens, [value and value - 0.02 for value in log_probs], reason

    served.engine.faulty, served.dtype = off, torch.bfloat16
    with pytest.warns(UserWarning, match=r"differ by 0\.0[12]\d* per token .* --dtype float32"):
        generate(VLLMServer(served.address), policy)
    served.dtype = torch.float32
    change(policy)
    with pytest.raises(UserError, match="a layer keeps its old weights"):
        generate(VLLMServer(served.address), policy)


def test_known_faults_of_servers_come_with_a_remedy(served, policy):
    def reload_weights(weights_path):
        raise RuntimeError("Call to collective_rpc method failed: shapes")

    served.engine.reload_weights = reload_weights
    with pytest.raises(UserError, match="serving the policy's model") as error:
        generate(VLLMServer(served.address), policy)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("way", ["nccl", "ipc"], indirect=True)
def test_a_refused_update_does_not_hang(engine, served, policy):
    generate(engine, policy)
    served.engine.updating = True
    change(policy)
    with pytest.raises(UserError, match=r"start_weight_update to accept the request, but got 500 .*already active"):
        generate(engine, policy)
    served.engine.updating = False
    served.engine.start_weight_update = lambda: None
    with pytest.raises(UserError, match=r"update_weights to accept the request, but got 500"):
        generate(engine, policy)
    del served.engine.start_weight_update
    generate(engine, policy)  # by a new group
    assert served.pushes() == 2 and served.version == weights_version(policy)


def test_a_push_needs_its_device(served, policy):
    for push in (NCCLPush(), IPCPush()):
        with pytest.raises(UserError, match=rf"on a GPU.* for {type(push).__name__}, but got cpu, try FolderPush\.$"):
            generate(VLLMServer(served.address, push), policy)


def test_the_id_of_a_group_is_torch_s():
    """By the rendezvous of vLLM's example; the fake worker checks its form before it fails for want of NCCL."""
    store, opened = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False), Future()
    threading.Timer(0.1, store.set, ("0", bytes(range(128)))).start()
    info = NCCLPush()._group_address(store, opened)
    assert info.keys() == {"nccl_unique_id_b64"} and base64.b64decode(*info.values()) == bytes(range(128))
    with pytest.raises(RuntimeError, match="unique-id rendezvous"):
        BroadcastWorker().init(1, 2, packed=False, **info)
    opened.set_exception(ConnectionError("no NCCL"))
    with pytest.raises(ConnectionError, match="no NCCL"):
        NCCLPush()._group_address(dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False), opened)


def test_each_gpu_has_its_own_handles(policy, monkeypatch):
    """Two processes, on two GPUs: a worker finds the handles of its GPU."""
    sent = []
    monkeypatch.setattr(
        ipc_push, "gather_objects", lambda mine: [mine, ("GPU-1", [("other", *h[1:]) for h in mine[1]])]
    )
    with FilePush().prepared(policy) as send:
        send(SimpleNamespace(post=lambda path, body: sent.append((path, body))))
    paths, bodies = zip(*sent, strict=True)
    assert paths == (
        "/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update",
    )  # fmt: skip
    handles = pickle.loads(base64.b64decode(bodies[2]["update_info"]["ipc_handles_pickled"]))
    assert all(handle.keys() == {"GPU-0", "GPU-1"} and handle["GPU-1"][0] == "other" for handle in handles)
    assert len(handles) == len(bodies[2]["update_info"]["names"]) > 10


@pytest.mark.slow
def test_two_workers_in_other_processes_receive_equal_weights(directory, policy, serve):
    workers = [DistantWorker(number, server_of_processes().Process) for number in range(2)]
    fake = serve(directory, backend=workers)
    engine = VLLMServer(fake.address, GlooPush())
    for _ in range(2):
        change(policy)
        generate(engine, policy)
        check_holds(fake, policy)
    for worker in workers:
        worker.close()


@every_way
def test_a_server_on_the_same_gpu_sleeps_before_training(directory, serve, served, policy, way, monkeypatch):
    backend, push = WAYS[way]
    fake, emptied = serve(directory, sleep_mode=True, backend=backend), []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(len(fake.engine.log)))
    engine = VLLMServer(fake.address, push(), sleeps=True)
    awake = VLLMServer(served.address, push())
    for update in range(2):  # the second time with the same weights, which the server has dropped
        made, expected = (generate(one, policy, update=update) for one in (engine, awake))
        assert torch.equal(made.actions, expected.actions)
        assert torch.equal(made.sampling_log_probs, expected.sampling_log_probs)
        assert not fake.engine.asleep  # the next batch of a validation needs no push
        engine.release(policy)
        engine.release(policy)  # nothing was awake
        assert fake.engine.asleep == {"weights", "kv_cache"} and fake.version == "incomplete"
    first = ["wake weights", "reload", "reset", "wake kv_cache", "sleep"]
    assert fake.engine.log == [*first, first[0], "zero", *first[1:]]
    assert emptied == [0, 0, 5, 5], "before the weights are prepared, and before the server wakes"


def test_a_server_that_can_t_sleep(served, policy):
    with pytest.raises(UserError, match=r"to sleep while the policy trains, .* --enable-sleep-mode\.$"):
        engine = VLLMServer(served.address, sleeps=True)
        generate(engine, policy)
        engine.release(policy)


def test_the_first_process_pushes(served, policy, monkeypatch):
    waited = []
    monkeypatch.setattr(server, "world", lambda: (1, 2))
    monkeypatch.setattr(server, "all_sum", lambda tensor: waited.append(served.pushes()) or 2 * tensor)
    second = VLLMServer(served.address)
    with pytest.raises(UserError, match="keep the weights"):  # nobody pushed them
        generate(second, policy)
    assert waited == [0] and served.pushes() == 0  # whether there is a push
    monkeypatch.setattr(server, "world", lambda: (0, 2))
    generate(VLLMServer(served.address), policy)
    generate(second, policy)
    assert waited == [0, 0, 1, 1] and served.pushes() == 1  # that there is; what it sent has arrived; it is checked
