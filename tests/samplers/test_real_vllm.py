"""A real vLLM server, started here: ``pytest -m vllm``, see docs/vllm.md."""

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import nullcontext

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks import kill_loop
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.vllm.folder_push import FolderPush
from lightning_cgrpo.samplers.vllm.ipc_push import IPCPush
from lightning_cgrpo.samplers.vllm.nccl_push import NCCLPush
from lightning_cgrpo.samplers.vllm.server import VLLMServer
from tests.samplers.fake_transfer import FilePush, GlooPush
from tests.samplers.test_conversation import check_conversations
from tests.samplers.test_own_server import check_killed_run_equals_a_whole_run
from tests.samplers.vllm_client import LENGTH, change, check_log_probs, generate

VLLM = os.environ.get("LIGHTNING_CGRPO_VLLM") or shutil.which("vllm")
"""The command, of any environment."""
PUSHES = {FolderPush: None, NCCLPush: "nccl", GlooPush: "nccl", IPCPush: "ipc", FilePush: "ipc"}
"""With the server's backend of weight transfer."""
PUSH = next(push for push in PUSHES if push.__name__ == os.environ.get("LIGHTNING_CGRPO_VLLM_PUSH", "FolderPush"))
# A head of 32 is the smallest of vLLM's kernels. One sequence at a time: rounding depends on the rest of a batch.
OPTIONS = (
    "--logprobs-mode processed_logprobs --dtype float32 --no-enable-chunked-prefill --enforce-eager "
    "--max-model-len 1024 --max-num-seqs 1 --no-enable-prefix-caching --gpu-memory-utilization 0.1"
)
PATIENCE = 1800.0
"""Seconds until a server answers, which takes a CPU a minute, and many more beside other work."""

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(VLLM is None, reason="no vLLM: put `vllm` on the path, or its file into LIGHTNING_CGRPO_VLLM"),
]


def make_served_model(directory, untied):
    """A model for vLLM; answers differ in length, because it is peaked and the policy has many stop tokens."""
    make_tiny_model(directory, heads=2)
    network = AutoModelForCausalLM.from_pretrained(directory)
    with torch.no_grad():
        network.get_input_embeddings().weight.mul_(3)
    if untied:
        network.config.tie_word_embeddings = False
        network.lm_head.weight = torch.nn.Parameter(network.lm_head.weight.detach().clone())
    network.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module", params=["untied", "tied"])
def model(request, tmp_path_factory):
    return make_served_model(tmp_path_factory.mktemp("models") / request.param, untied=request.param == "untied")


@pytest.fixture(scope="module")
def address(model):
    """Of a server that serves the model until the tests of it are done."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [VLLM, "serve", str(model), "--host=127.0.0.1", f"--port={port}", *OPTIONS.split()]
    if PUSHES[PUSH]:
        command.append(f'--weight-transfer-config={{"backend": "{PUSHES[PUSH]}"}}')
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    log, url = model.with_suffix(".log"), f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        files = {"stdout": output, "stderr": subprocess.STDOUT}
        server = subprocess.Popen(command, env=environment, start_new_session=True, **files)
    try:
        deadline = time.monotonic() + PATIENCE
        while not healthy(url):
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()[-5000:]
            time.sleep(1)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=10).is_success
    except httpx.HTTPError:
        return False


@pytest.fixture
def policy(model):
    policy = CausalLMPolicy(str(model), temperature=0.8)
    with torch.device("cuda" if PUSH in (NCCLPush, IPCPush) else "cpu"):
        policy.load()
    policy.stop_tokens = tuple(sorted({*policy.stop_tokens, *range(20, 120)}))
    return policy


@pytest.fixture
def engine(address):
    return VLLMServer(address, PUSH())


def test_answers_are_sampled_from_the_pushed_weights(engine, policy):
    for change_by in (0.0, 0.1, 0.1):
        change(policy, change_by)
        made, again, other = (generate(engine, policy, update=update) for update in (0, 0, 1))
        check_log_probs(policy, made)
        assert torch.equal(made.actions, again.actions) and not torch.equal(made.actions, other.actions)
    assert generate(engine, policy, Sampling(LENGTH, min_new_tokens=LENGTH)).mask.all()
    assert (generate(engine, policy, Sampling(LENGTH, top_k=1)).sampling_log_probs == 0).all()


def test_a_changed_output_layer_arrives_or_ends_the_run(engine, policy, model):
    """A tied layer has a copy in the CPU's kernels, which pushes do not reach."""
    generate(engine, policy)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.mul_(1.05)
    stale = model.name == "tied" and not torch.cuda.is_available()
    with pytest.raises(UserError, match="a layer keeps its old weights") if stale else nullcontext():
        check_log_probs(policy, generate(engine, policy))


def test_turns_with_tools(engine, policy):
    check_conversations(policy, engine)


def test_a_killed_run_equals_a_whole_run(address, model, tmp_path):
    if model.name == "tied":
        pytest.skip("refused on a CPU")
    more = ["--model.sampler.engine=VLLMServer", f"--model.sampler.engine.address={address}", "--ckpt_path=auto"]
    more += [f"--model.policy.model={model}", "--trainer.max_steps=4", "--trainer.limit_val_batches=0"]
    more += ["--callbacks.initial_rates=null"]

    def runs(name):
        return kill_loop.Run(tmp_path / name, "language", "auto", *more)

    check_killed_run_equals_a_whole_run(runs, tmp_path)
