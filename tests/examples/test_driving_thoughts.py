"""Thoughts of a larger model: what the command asks for, and what it keeps."""

import base64
import io
import json
from pathlib import Path

import pytest
from PIL import Image

from examples.driving_thoughts import main
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.json_client import JSONClient
from lightning_cgrpo.tasks.driving.answers import AnswerFormat
from lightning_cgrpo.tasks.driving.thoughts import WrittenThoughts

CONFIG = ["-c", "configs/navsim_sft.yaml", "--data.train_prompts=3"]


@pytest.fixture
def think(monkeypatch, tmp_path):
    """Runs the command with a server that says `say(number)` to each request, and returns the requests."""

    def run(say, out=tmp_path / "thoughts.jsonl"):
        requests = []

        def post_all(client, path, bodies):
            assert path == "/v1/chat/completions" and client.address == "http://large"
            assert client._headers == {"Authorization": "Bearer secret"}
            started = len(requests)
            requests.extend(bodies)
            texts = [say(number) for number in range(started, len(requests))]
            return [{"choices": [{"message": {"content": text}, "finish_reason": "stop"}]} for text in texts]

        monkeypatch.setattr(JSONClient, "post_all", post_all)
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        main([*CONFIG, "--server", "http://large", "--writer", "large", "--out", str(out)])
        return requests

    return run


def scenes(out: Path) -> list[str]:
    return [json.loads(line)["scene"] for line in out.read_text().splitlines()]


def test_each_scene_is_asked_once_with_its_pictures_and_its_drive(think, tmp_path, capsys):
    out = tmp_path / "thoughts.jsonl"
    requests = think(lambda number: f" The road is free, {number}. ")
    assert len(requests) == 3 == len(set(scenes(out)))
    for request in requests:
        assert request["model"] == "large" and request["max_tokens"] == 512
        content = request["messages"][-1]["content"]
        pictures = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
        assert Image.open(io.BytesIO(base64.b64decode(pictures[0].partition(",")[2]))).size == (64, 64)
        drive = AnswerFormat().read(content[-1]["text"])
        assert "these positions" in content[-1]["text"] and drive is not None, "four waypoints"
    thoughts = WrittenThoughts(out)
    assert all(text.startswith("The road is free") for text in thoughts.texts.values())
    assert "thoughts on 3 scenes" in capsys.readouterr().out
    assert think(str) == [], "nothing is left to ask"


def test_an_interrupted_command_continues(think, tmp_path):
    whole, out = tmp_path / "whole.jsonl", tmp_path / "thoughts.jsonl"
    think(lambda number: "Slowly.", whole)
    first, second, _ = whole.read_text().splitlines(keepends=True)
    out.write_text(first + second[:25])
    assert len(think(lambda number: "Slowly.")) == 2 and sorted(scenes(out)) == sorted(scenes(whole))


def test_unfit_texts_are_asked_for_again(think, tmp_path):
    """One scene gets a bracket, and an empty text at the second seed."""
    said = ["At [1.0, 2.0].", "On.", "On.", "", "Gently."]
    requests = think(said.__getitem__)
    lines = (tmp_path / "thoughts.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["On.", "On.", "Gently."]
    assert [request["seed"] for request in requests] == [0, 0, 0, 1, 2]


def test_scenes_without_a_fit_text_are_counted(think, tmp_path):
    with pytest.raises(UserError, match="got none on 1 of 3 in 3 tries each"):
        think(lambda number: "On." if number in (1, 2) else "(I turn)")
    assert len(scenes(tmp_path / "thoughts.jsonl")) == 2
    think(lambda number: "On.")
    assert len(scenes(tmp_path / "thoughts.jsonl")) == 3
