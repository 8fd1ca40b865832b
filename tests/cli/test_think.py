"""The command think, with a local server of chat completions."""

import base64
import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from PIL import Image

from lightning_cgrpo import json_client
from lightning_cgrpo.__main__ import main
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.tasks.driving.answers import AnswerFormat
from lightning_cgrpo.tasks.driving.thoughts import WrittenThoughts

CONFIG = ["-c", "configs/navsim_sft.yaml", "--data.train_prompts=3"]


class Server(ThreadingHTTPServer):
    """Answers by `say`: (status, text) for each request's number."""

    def __init__(self, say):
        super().__init__(("127.0.0.1", 0), Handler)
        self.say, self.requests, self.keys, self.lock = say, [], [], threading.Lock()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            number = len(self.server.requests)
            self.server.requests.append(body)
            self.server.keys.append(self.headers.get("Authorization"))
        status, text = self.server.say(number)
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        answer = {"choices": [choice]} if status == 200 else {"error": {"message": text}}
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setattr(json_client, "PAUSES", (0.0, 0.0))
    servers = []

    def start(say):
        servers.append(Server(say))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def think(server, out, *further):
    address = f"http://127.0.0.1:{server.server_port}"
    main(["think", *CONFIG, "--server", address, "--writer", "large", "--out", str(out), *further])


def scenes(out: Path) -> list[str]:
    return [json.loads(line)["scene"] for line in out.read_text().splitlines()]


def test_each_scene_is_asked_once_with_its_pictures_and_its_drive(serve, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    server, out = serve(lambda number: (200, f" The road is free, {number}. ")), tmp_path / "thoughts.jsonl"
    think(server, out)
    assert len(server.requests) == 3 == len(set(scenes(out))) and set(server.keys) == {"Bearer secret"}
    for request in server.requests:
        assert request["model"] == "large" and request["max_tokens"] == 512
        content = request["messages"][-1]["content"]
        pictures = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
        assert Image.open(io.BytesIO(base64.b64decode(pictures[0].partition(",")[2]))).size == (64, 64)
        drive = AnswerFormat().read(content[-1]["text"])
        assert "these positions" in content[-1]["text"] and drive is not None, "four waypoints"
    thoughts = WrittenThoughts(out)
    assert all(text.startswith("The road is free") for text in thoughts.texts.values())
    assert "thoughts on 3 scenes" in capsys.readouterr().out
    think(server, out)
    assert len(server.requests) == 3, "nothing is left to ask"


def test_an_interrupted_command_continues(serve, tmp_path):
    whole = tmp_path / "whole.jsonl"
    think(serve(lambda number: (200, "Slowly.")), whole)
    first, second, _ = whole.read_text().splitlines(keepends=True)
    out = tmp_path / "cut.jsonl"
    out.write_text(first + second[:25])
    server = serve(lambda number: (200, "Slowly."))
    think(server, out)
    assert len(server.requests) == 2 and sorted(scenes(out)) == sorted(scenes(whole))


def test_a_busy_server_is_asked_again_and_unfit_texts_too(serve, tmp_path):
    """Three scenes: the server is busy once, then one scene gets a bracket, and an empty text at the second seed."""
    said = [(429, "slow down"), (200, "At [1.0, 2.0]."), (200, "On."), (200, "On."), (200, ""), (200, "Gently.")]
    server, out = serve(lambda number: said[number]), tmp_path / "thoughts.jsonl"
    think(server, out)
    assert [json.loads(line)["text"] for line in out.read_text().splitlines()] == ["On.", "On.", "Gently."]
    assert [request["seed"] for request in server.requests] == [0, 0, 0, 0, 1, 2]


def test_scenes_without_a_fit_text_are_counted(serve, tmp_path):
    server = serve(lambda number: (200, "(I turn)") if number < 1 or number > 2 else (200, "On."))
    out = tmp_path / "thoughts.jsonl"
    with pytest.raises(UserError, match="got none on 1 of 3 in 3 tries each"):
        think(server, out)
    assert len(scenes(out)) == 2
    think(serve(lambda number: (200, "On.")), out)
    assert len(scenes(out)) == 3


def test_a_refusal_ends_the_command(serve, tmp_path):
    with pytest.raises(UserError, match=r"401 .no key"):
        think(serve(lambda number: (401, "no key")), tmp_path / "thoughts.jsonl")
