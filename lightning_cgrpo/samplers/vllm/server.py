"""Generation by a vLLM server."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.core.distributed import all_sum, gather_objects, world
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.json_client import JSONClient, PassingError
from lightning_cgrpo.core.rollout import Rollouts, prompt_tokens
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.padded_prompts import without_text
from lightning_cgrpo.policies.sharding import unsharded
from lightning_cgrpo.samplers.engine import RolloutEngine, Sampling
from lightning_cgrpo.samplers.vllm.folder_push import FolderPush
from lightning_cgrpo.samplers.vllm.own_server import OwnServer
from lightning_cgrpo.samplers.vllm.push import WeightPush
from lightning_cgrpo.samplers.vllm.requests import (
    LOGPROBS_MODE,
    Turn,
    check_informative,
    read_turn,
    request_parameters,
    seeds_of,
    turns_to_rollouts,
)
from lightning_cgrpo.samplers.vllm.weights import PROBE_TOKENS, check_agreement, served_dtype, weights_version

API_KEY = "VLLM_API_KEY"
REMEDIES = {
    "Unauthorized": f"the server's key in the environment variable {API_KEY}",
    "does not use offset": "`vllm serve` with --no-enable-chunked-prefill",
    "EngineCore": "the last lines of the server's log, because its engine died; on a CPU, seeded requests need "
    "`vllm serve` with --no-enable-chunked-prefill",
    "EngineDead": "the last lines of the server's log, because its engine died, and start the server anew",
    "collective_rpc": "serving the policy's model, and a folder of FolderPush that the server sees",
    "Not Found": "VLLM_SERVER_DEV_MODE=1 before `vllm serve`",
    "dtype": "`vllm serve` with --dtype float32",
}
"""Remedies by parts of vLLM's messages."""
BESIDE = {
    "cuda": ["--gpu-memory-utilization=0.4"],
    "cpu": ["--dtype=float32", "--no-enable-chunked-prefill", "--enforce-eager", "--gpu-memory-utilization=0.1"],
}
"""Options of a server that a run starts, by the policy's device: the server isn't alone there, and docs/vllm.md."""
IN_BETWEEN = "incomplete"
"""Version of the weights during a push, and of a server that sleeps."""


class VLLMServer(RolloutEngine):
    """Lets a vLLM server continue the prompts.

    Without an address, the run starts a server of the policy's model on this machine. The server ends with this object
    or the process, however the process ends, and `OwnServer.end` ends it before.

    With an address, start the server with the policy's model, for one run at a time:

    ``VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --host 127.0.0.1 --logprobs-mode processed_logprobs``

    The environment variable ``VLLM_API_KEY``, which also gives a server its key, is then sent with each request.

    Each answer is one request with its own seed; in a conversation, each turn is one, with all tokens before it.
    Changed weights are pushed before a rollout, and the log-probabilities of a short answer are compared.

    Args:
        address: of a server that runs; by default one is started.
        push: way of the weights, `FolderPush` (the default), `NCCLPush` or `IPCPush`.
        timeout: seconds until a request fails.
        sleeps: the server shares the GPUs of training, and gives its memory back before each update trains
            (needs ``--enable-sleep-mode``). Weights are then pushed before each update's rollout. By default a server
            that is started here sleeps if the policy is on a GPU and `push` isn't `NCCLPush`.
        command: starts a server; ``serve`` may have a path before and options behind it.
    """

    reads_weights = False
    client: JSONClient
    _where: str

    def __init__(
        self,
        address: str | None = None,
        push: WeightPush | None = None,
        timeout: float = 600.0,
        sleeps: bool | None = None,
        command: str = "vllm serve",
    ) -> None:
        self.push: WeightPush = FolderPush() if push is None else push
        self.timeout = timeout
        self.sleeps = sleeps
        self.command = command
        self.own: OwnServer | None = None  # on the process that started it
        self._reached = False
        self._version = ""
        self._in_session = False
        self._first_gap: float | None = None  # of log-probabilities after the first push
        if address is not None:
            self._set_address(address, os.environ.get(API_KEY))

    def _set_address(self, address: str, key: str | None) -> None:
        self.client = JSONClient(address, self.timeout, "a vLLM server", key, REMEDIES)
        self._where = f"the vLLM server at {self.client.address}"
        self._reached = True

    @contextmanager
    def session(self, policy: CausalLMPolicy) -> Iterator[None]:
        """Push changed weights, and check at the end that the server still has them. Collective."""
        if not self._reached:
            self._start(policy)
        with self._while_it_runs():
            self._synchronize(policy)
            self._in_session = True
            try:
                yield
            finally:
                self._in_session = False
            served = self._served_version()
        if served != self._version:
            raise UserError(
                f"Expected {self._where} to keep the weights '{self._version}' until all prompts were answered, but "
                f"got '{served}', because it was restarted or another run pushed its own, try a server for each run."
            )

    def release(self, policy: CausalLMPolicy) -> None:
        if self.sleeps and self._version:
            with self._while_it_runs():
                self._let_sleep(policy)

    @torch.no_grad()
    def generate(
        self,
        policy: CausalLMPolicy,
        inputs: dict[str, Tensor],
        group_size: int,
        sampling: Sampling,
        draws: Tensor,
        limits: Tensor | None = None,
    ) -> Rollouts:
        if not self._in_session:
            raise RuntimeError("Expected a call within `session`, which pushes the weights, but got one outside.")
        images = without_text(inputs)
        if images:
            raise UserError(
                f"Expected prompts of text alone for vLLM, but got {', '.join(images)} too, try GenerationSampler "
                "without an engine."
            )
        prompts = prompt_tokens(inputs)
        most_tokens = [sampling.max_new_tokens] * len(prompts)
        if limits is not None:
            most_tokens = limits.tolist()
        answer_seeds = seeds_of(draws[..., 0].flatten())
        requests = []
        for number, prompt in enumerate(prompts):
            for answer in range(group_size):
                seed = answer_seeds[number * group_size + answer]
                requests.append({"prompt": prompt, **request_parameters(policy, sampling, seed, most_tokens[number])})
        turns = self._request_turns(policy, requests)
        return turns_to_rollouts(policy, inputs, turns, group_size, sampling.max_new_tokens)

    # --- a server of this run

    def _start(self, policy: CausalLMPolicy) -> None:
        """Start a server on the first process, whose address all processes get. Collective."""
        machines = sorted(set(gather_objects(socket.gethostname())))
        if len(machines) > 1:
            raise UserError(
                f"Expected all processes on one machine, because a server that this run starts is reached from there "
                f"alone, but got {', '.join(machines)}, try the address of a server that runs."
            )
        if self.sleeps is None:
            self.sleeps = policy.device.type == "cuda" and self.push.backend != "nccl"
        address, key, fault = "", "", ""
        if world()[0] == 0:
            try:
                address, key = self._start_here(policy)
            except UserError as error:
                fault = str(error)
        # Every process raises.
        address, key, fault = gather_objects((address, key, fault))[0]
        if fault:
            raise UserError(fault)
        self._set_address(address, key)

    def _start_here(self, policy: CausalLMPolicy) -> tuple[str, str]:
        """Address and key of a server that answers."""
        model = policy.model.config.name_or_path
        if not model:
            raise UserError(
                f"Expected a policy from a directory or the hub, because a server that this run starts reads it from "
                f"there, but got '{policy.name}' without a name, try the address of a server that runs."
            )
        options = [f"--logprobs-mode={LOGPROBS_MODE}", *BESIDE.get(policy.device.type, [])]
        revision = policy.model_init_kwargs.get("revision")
        if revision:
            options.append(f"--revision={revision}")
        if self.sleeps:
            options.append("--enable-sleep-mode")
        environment = {}
        if self.push.backend is not None:
            options.append(f'--weight-transfer-config={{"backend": "{self.push.backend}"}}')
        if self.push.backend == "ipc":
            environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
        self.own = OwnServer(self.command, model, options, environment)
        if isinstance(self.push, FolderPush):
            self.push.folder = self.push.folder or str(self.own.folder)  # removed with it, also after SIGKILL
        self.own.wait()
        return self.own.address, self.own.key

    @contextmanager
    def _while_it_runs(self) -> Iterator[None]:
        """Context: a request that fails because this run's server has ended, or is ending, is told with its log."""
        try:
            yield
        except UserError as error:
            if self.own is not None:
                self.own.check("go on", wait=isinstance(error, PassingError))
                if "Engine" in str(error):  # which died, and the server may follow
                    raise UserError(f"{error} Its log ends with:\n{self.own.last_lines()}") from None
            raise

    # --- weights

    def _synchronize(self, policy: CausalLMPolicy) -> None:
        wanted = weights_version(policy)
        if wanted == self._version:
            return
        if self.sleeps:
            torch.cuda.empty_cache()  # the server needs the memory that PyTorch keeps for later
        # The first process decides for all, because a push is collective.
        first = world()[0] == 0
        stale = first and (self.sleeps or self._served_version() != wanted)
        if int(all_sum(torch.full((1,), stale, dtype=torch.int64, device=policy.device))):
            with unsharded(policy):  # the server generates while each GPU has its shard alone
                self._push(policy, first)
                if first:
                    gap = self._check_weights(policy)
                    if self._first_gap is None:
                        self._first_gap = gap
                    self._name_weights(wanted)
            _wait_for_all(policy)
        self._version = wanted

    def _push(self, policy: CausalLMPolicy, first: bool) -> None:
        """Replace the server's weights; all processes prepare them, the first one sends them."""
        if first:
            self._name_weights(IN_BETWEEN)
        with self.push.prepared(policy) as send:
            if self.sleeps:
                torch.cuda.empty_cache()  # of what preparing took
                _wait_for_all(policy)
            if first:
                if self.sleeps:
                    self.client.post("/wake_up?tags=weights", {})
                if self._first_gap is not None:
                    # The check notices zeros where weights do not arrive, and might not notice weights one update old.
                    # Not at first, because a layer of zeros hides that the server has another model.
                    self.client.post("/weight_checker", {"action": "reset"})
                send(self.client)
            _wait_for_all(policy)  # the server may read every process's weights until here
        if not first:
            return
        # The cache holds keys and values of the old weights.
        if self.client.post("/reset_prefix_cache", {}).get("success") is False:
            raise UserError(
                f"Expected {self._where} to have no other requests, but got some that keep its cache, try a server for "
                "each run."
            )
        if self.sleeps:
            self.client.post("/wake_up?tags=kv_cache", {})

    def _let_sleep(self, policy: CausalLMPolicy) -> None:
        """Have the server drop weights and cache (level 2), once every process has its answers."""
        _wait_for_all(policy)
        if world()[0] == 0:
            self._name_weights(IN_BETWEEN)
            self.client.post("/sleep?level=2", {})
            if self.client.get("/is_sleeping").get("is_sleeping") is not True:
                raise UserError(
                    f"Expected {self._where} to sleep while the policy trains, but got a server that stays awake, try "
                    "`vllm serve` with --enable-sleep-mode."
                )
        _wait_for_all(policy)
        self._version = ""

    def _check_weights(self, policy: CausalLMPolicy) -> float:
        """The gap between the server's log-probabilities and the policy's."""
        prompt = [policy.stop_tokens[0]]
        free = {"prompt": prompt, **request_parameters(policy, Sampling(PROBE_TOKENS), seed=0), "stop_token_ids": []}
        forced = {**free, "max_tokens": 1, "allowed_token_ids": prompt}
        forced_turn, free_turn = self._request_turns(policy, [forced, free])
        if forced_turn.log_probs != [0.0]:  # the logarithm of 1, where nothing else was allowed
            raise UserError(
                f"Expected {self._where} to give log-probabilities of what it samples from, but got others, try `vllm "
                f"serve` with --logprobs-mode {LOGPROBS_MODE}."
            )
        return check_agreement(policy, prompt, free_turn, self._where, self._first_gap, self._in_float32)

    def _in_float32(self) -> bool:
        return served_dtype(self.client) is torch.float32

    def _served_version(self) -> str:
        return str(self.client.get("/weight_info").get("weight_version"))

    def _name_weights(self, version: str) -> None:
        self.client.post("/update_weight_version", {"new_version": version})

    # --- answers

    def _request_turns(self, policy: CausalLMPolicy, requests: list[dict[str, Any]]) -> list[Turn]:
        """Answers to requests, each sent several times if needed: its seed fixes the answer."""
        bodies = [{**request, "return_token_ids": True} for request in requests]
        replies = self.client.post_all("/v1/completions", bodies)
        turns = []
        for request, reply in zip(requests, replies, strict=True):
            turns.append(read_turn(policy, request, reply, self._where))
        if requests:
            check_informative(turns, requests[0], self._where)
        return turns


def _wait_for_all(policy: CausalLMPolicy) -> None:
    """Wait for all processes."""
    int(all_sum(torch.ones(1, device=policy.device)))
