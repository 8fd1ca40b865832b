"""The check of a GPU checks itself where there is no GPU."""

import json

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu.__main__ import LIMITS, main
from benchmarks.gpu.part import PARTS
from tests.forked import run_module


def test_parts_take_ten_minutes():
    assert list(PARTS) == list(LIMITS) and sum(LIMITS.values()) == 600


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the parts run on the GPU")
def test_parts_run_on_the_pretended_device(tmp_path, capsys, monkeypatch):
    """Each part in a forked process; the next test starts interpreters."""
    monkeypatch.setattr(command.subprocess, "run", run_module)
    out = tmp_path / "gpu.json"
    assert main(["--only", "prompts", "waits", "throughput", "processes", "trl", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert all(found["prompts"]["shares_prompts"].values())
    assert found["waits"]["tasks"]["gsm8k"]["waits"] > 0 and found["throughput"]["tiny"]["shares_prompts"]
    assert max(found["waits"]["families"].values()) <= 5
    assert all(found["processes"][part]["equal"] for part in ("ipc", "broadcast"))
    assert "There is no GPU here" in capsys.readouterr().out


@pytest.mark.slow
def test_a_part_is_an_interpreter_with_a_time_limit(monkeypatch, tmp_path):
    out = tmp_path / "gpu.json"
    assert main(["--only", "versions", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["versions"]["torch"] == torch.__version__
    monkeypatch.setattr("benchmarks.gpu.__main__.PRETENDED_LIMIT", 0.5)
    assert main(["--only", "versions", "trl", "--out", str(out)]) == 2
    assert [found["error"] for found in json.loads(out.read_text()).values()] == ["no result after 0 s"] * 2
