"""What vLLM 0.33 documents of itself, as far as it is asked here, around a small model that really samples.

Requests are held against the documented names, and against the order in which things may be done; replies have the form
of a real server's. ``python -m tests.samplers.fake_vllm serve MODEL --port=PORT`` is a process of its own.
"""

import argparse
import copy
import functools
import json
import math
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.samplers.fake_transfer import WORKERS

SAMPLING = {
    "n", "seed", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "max_tokens", "min_tokens", "stop_token_ids", "ignore_eos", "logprobs", "allowed_token_ids",
    "stop", "include_stop_str_in_output", "skip_special_tokens",
}  # fmt: skip
PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


@functools.cache
def _read(directory):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


@functools.cache
def _tokenizer(directory):
    return AutoTokenizer.from_pretrained(directory)


class FakeEngine:
    """A model that samples.

    Attributes:
        log: what was done with the weights and the cache, in order.
        faulty: if set, changes each answer: a function of (tokens, log_probs, reason).
        asleep: memory that was given back, "weights" and "kv_cache".
    """

    def __init__(self, directory, logprobs_mode="raw_logprobs", room=10_000, sleep_mode=False, workers=()):
        self.model = copy.deepcopy(_read(str(directory)))
        self.tokenizer = _tokenizer(str(directory))
        self.raw = logprobs_mode == "raw_logprobs"
        self.room = room
        self.sleep_mode, self.asleep = sleep_mode, set()
        self.log, self.faulty = [], None
        self.lock = threading.Lock()
        self.workers, self.updating = list(workers), False

    def on_workers(self, method, info):
        """What each worker returns."""
        if not self.workers:
            raise RuntimeError("Weight transfer not configured. Please set weight_transfer_config to enable it.")
        with ThreadPoolExecutor() as pool:
            return list(pool.map(lambda worker: getattr(worker, method)(**info), self.workers))

    def start_weight_update(self):
        if self.updating:
            raise RuntimeError("start_weight_update called while a weight update is already active.")
        self.updating = True

    def update_weights(self, info):
        if not self.updating:
            raise RuntimeError("start_weight_update must be called before update_weights.")
        assert "weights" not in self.asleep
        self.updating = False  # after an error, too
        first, *others = self.on_workers("receive", info)
        for other in others:
            assert first.keys() == other.keys() and all(torch.equal(first[name], other[name]) for name in first)
        self.model.load_state_dict(first, strict=False)
        self.updating = True

    def finish_weight_update(self):
        if not self.updating:
            raise RuntimeError("finish_weight_update called without a matching start_weight_update.")
        self.updating = False
        self.log.append("reload")

    def zero(self):
        assert "weights" not in self.asleep
        self.forget()
        self.log.append("zero")

    @torch.no_grad()
    def forget(self):
        for parameter in self.model.parameters():
            parameter.zero_()

    def reload_weights(self, weights_path):
        """As vLLM does: layers that the checkpoint lacks stay as they are."""
        assert "weights" not in self.asleep
        given = AutoModelForCausalLM.from_pretrained(weights_path, dtype=torch.float32)
        self.model.load_state_dict(given.state_dict(), strict=False)
        self.log.append("reload")

    def sleep(self, level):
        """Level 2 forgets the weights."""
        assert level == "2"
        if self.sleep_mode:
            self.asleep = {"weights", "kv_cache"}
            self.forget()
        self.log.append("sleep")

    def wake_up(self, tags):
        self.asleep.discard(tags)
        self.log.append(f"wake {tags}")

    def answer(self, prompt, wanted):
        """Tokens, their log-probabilities and the finish reason."""
        assert not self.asleep
        assert wanted.keys() <= SAMPLING and wanted["n"] == 1 and wanted["ignore_eos"]
        assert PENALTIES.items() <= wanted.items(), "or the model's generation config would say"
        assert wanted["logprobs"] == 0 and 0 <= wanted["seed"] < 2**32 and wanted["top_k"] >= 0
        generator = torch.Generator().manual_seed(wanted["seed"])
        tokens, log_probs, reason = [], [], "length"
        with torch.no_grad(), self.lock:
            while len(tokens) < min(wanted["max_tokens"], self.room - len(prompt)):
                logits = self.model(torch.tensor([prompt + tokens])).logits[0, -1].float()
                shown = self.filtered(logits, len(tokens), wanted)
                chosen = int(torch.multinomial(shown.softmax(-1), 1, generator=generator))
                tokens.append(chosen)
                log_probs.append(float((logits if self.raw else shown).log_softmax(-1)[chosen]))
                if chosen in wanted["stop_token_ids"] or self.completes(tokens, wanted):
                    reason = "stop"
                    break
        return (tokens, log_probs, reason) if self.faulty is None else self.faulty(tokens, log_probs, reason)

    def completes(self, tokens, wanted):
        """Whether the last token completes a stop string in the text, from the minimum on."""
        if not wanted.get("stop") or len(tokens) <= wanted["min_tokens"]:
            return False
        special = wanted["skip_special_tokens"]
        whole, before = (self.tokenizer.decode(part, skip_special_tokens=special) for part in (tokens, tokens[:-1]))
        return any(whole.count(text) > before.count(text) for text in wanted["stop"])

    @staticmethod
    def filtered(logits, step, wanted):
        logits = logits / wanted["temperature"]
        if wanted.get("allowed_token_ids"):
            logits[~torch.isin(torch.arange(len(logits)), torch.tensor(wanted["allowed_token_ids"]))] = -math.inf
        if step < wanted["min_tokens"]:
            logits[wanted["stop_token_ids"]] = -math.inf
        probabilities = logits.softmax(-1)
        logits[probabilities < wanted["min_p"] * probabilities.max()] = -math.inf
        ordered, order = logits.sort(descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        out = (before >= wanted["top_p"]) & (wanted["top_p"] < 1)
        if wanted["top_k"]:
            out[wanted["top_k"] :] = True
        logits[order[out]] = -math.inf
        return logits


class FakeServer(ThreadingHTTPServer):
    """``vllm serve`` in the development mode.

    Args:
        backend: of ``--weight-transfer-config``, "nccl" or "ipc", or the workers.

    Attributes:
        requests: every request's path and body.
        asked: parameters and prompt of every request for a completion.
        refusals: codes to answer the next requests of completions with.
    """

    daemon_threads = True

    def __init__(self, directory, logprobs_mode="processed_logprobs", dev_mode=True, backend=None, port=0, **options):
        super().__init__(("127.0.0.1", port), _Handler)
        workers = [WORKERS[backend]()] if isinstance(backend, str) else backend or ()
        self.engine = FakeEngine(directory, logprobs_mode, workers=workers, **options)
        self.dev_mode, self.dtype = dev_mode, torch.float32
        self.version, self.holds_cache = "default", False
        self.requests, self.refusals, self.asked = [], [], []
        self.address = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def pushes(self):
        return self.engine.log.count("reload")

    def respond(self, method, url, body):
        """Status and content."""
        path, query = url.path, dict(parse_qsl(url.query))
        self.requests.append((path, body))
        if path == "/health":
            return 200, b""
        if path == "/v1/completions" and method == "POST":
            return self.completions(body)
        if not self.dev_mode:
            return 404, {"detail": "Not Found"}
        match method, path:
            case "GET", "/weight_info":
                return 200, {"weight_version": self.version}
            case "GET", "/server_info":
                return 200, {"vllm_config": f"model='tiny', dtype={self.dtype}, seed=0"}
            case "POST", "/update_weight_version":
                self.version = body["new_version"]
                return 200, {"success": True, "new_version": self.version}
            case "POST", "/collective_rpc":
                assert body["method"] == "reload_weights"
                self.engine.reload_weights(**body["kwargs"])
                return 200, {"results": [None]}
            case "POST", "/weight_checker":
                assert body == {"action": "reset"}
                self.engine.zero()
                return 200, {"status": "reset"}
            case "GET", "/get_world_size":
                return 200, {"world_size": max(len(self.engine.workers), 1)}
            case "POST", "/init_weight_transfer_engine":
                self.engine.on_workers("init", body["init_info"])
                return 200, {"message": "Weight transfer initialized"}
            case "POST", "/start_weight_update" | "/finish_weight_update":
                getattr(self.engine, path[1:])()
                return 200, {"message": "Weight update started or finished"}
            case "POST", "/update_weights":
                self.engine.update_weights(body["update_info"])
                return 200, {"message": "Weights updated"}
            case "POST", "/sleep" | "/wake_up":
                getattr(self.engine, path[1:])(**query)
                return 200, b""
            case "GET", "/is_sleeping":
                return 200, {"is_sleeping": bool(self.engine.asleep)}
            case "POST", "/reset_prefix_cache":
                self.engine.log.append("reset")
                return 200, {"success": not self.holds_cache}
        return 404, {"detail": "Not Found"}

    def completions(self, body):
        if self.refusals:
            return self.refusals.pop(), {"error": {"message": "not now", "type": "x", "param": None, "code": 0}}
        prompt = body.pop("prompt")
        self.asked.append((body, prompt))
        assert body.pop("return_token_ids") is True
        if len(prompt) >= self.engine.room:
            return 400, {"error": {"message": "The prompt is too long", "type": "x", "param": None, "code": 400}}
        tokens, log_probs, reason = self.engine.answer(prompt, body)
        details = {"text_offset": [], "token_logprobs": log_probs, "tokens": [], "top_logprobs": []}
        choice = {"index": 0, "text": "…", "logprobs": details, "finish_reason": reason, "stop_reason": None}
        choice |= {"token_ids": tokens, "prompt_token_ids": prompt}
        return 200, {"id": "cmpl-1", "object": "text_completion", "model": "tiny", "choices": [choice], "usage": {}}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply("GET", None)

    def do_POST(self):
        self.reply("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def reply(self, method, body):
        try:
            status, content = self.server.respond(method, urlsplit(self.path), body)
        except Exception as error:  # as FastAPI's handlers do
            status, content = 500, {"error": {"message": repr(error), "type": "x", "param": None, "code": 500}}
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        """Says nothing."""


def main(arguments):
    parser = argparse.ArgumentParser()
    for name in ("serve", "model", "--host", "--logprobs-mode", "--dtype", "--gpu-memory-utilization"):
        parser.add_argument(name)
    parser.add_argument("--port", type=int)
    for name in ("--no-enable-chunked-prefill", "--enforce-eager", "--enable-sleep-mode"):
        parser.add_argument(name, action="store_true")
    given = parser.parse_args(arguments)
    assert given.serve == "serve" and given.host == "127.0.0.1" and os.environ["VLLM_SERVER_DEV_MODE"] == "1"
    FakeServer(given.model, given.logprobs_mode, port=given.port, sleep_mode=given.enable_sleep_mode)
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1:])
