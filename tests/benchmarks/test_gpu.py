"""The check of a GPU checks itself where there is no GPU."""

import json
import os
import sys
import time

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu.__main__ import LIMITS, main
from benchmarks.gpu.parts import PARTS
from tests.forked import run_module


def test_parts_take_ten_minutes():
    assert list(PARTS) == list(LIMITS) and sum(LIMITS.values()) == 600


def by_fork(part, limit, tiny):
    """As `measure`, without a new interpreter."""
    arguments = [sys.executable, "-m", "benchmarks.gpu.part", part, str(time.monotonic() + limit), str(int(tiny))]
    done = run_module(arguments, cwd=command.ROOT, env=os.environ, timeout=limit)
    return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the parts run on the GPU")
def test_parts_run_on_the_pretended_device(tmp_path, capsys, monkeypatch):
    """Each part in a forked process; the next test starts interpreters."""
    monkeypatch.setattr(command, "measure", by_fork)
    out = tmp_path / "gpu.json"
    assert main(["--tiny", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert list(found) == list(PARTS)
    assert set(found["decoding"]["equal tokens"].values()) == {1.0}
    by_default = found["decoding"]["tiny, 32 answers, default"]
    assert by_default["captures"] == 1 and by_default["slots"] == 32
    assert by_default["a step of a rollout"]["launched"] < found["passes"]["tiny, 8 answers"]["launched"]
    assert found["update"]["tiny"]["shares_prompts"] and found["update"]["tiny"]["first_update_seconds"] > 0
    assert found["first"]["gsm8k"]["values"] > 2
    assert all(found["prompts"]["shares_prompts"].values())
    assert found["waits"]["tasks"]["gsm8k"]["waits"] > 0
    assert max(found["waits"]["families"].values()) <= 5
    assert all(found["processes"][part]["equal"] for part in ("ipc", "broadcast"))
    assert "There is no GPU here" in capsys.readouterr().out


@pytest.mark.slow
def test_a_part_is_an_interpreter_with_a_time_limit(monkeypatch, tmp_path):
    """A part that is cut shows where it was."""
    out = tmp_path / "gpu.json"
    assert main(["--tiny", "--only", "machine", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["machine"]["torch"] == torch.__version__
    monkeypatch.setattr("benchmarks.gpu.__main__.TINY_LIMIT", 4)
    assert main(["--tiny", "--only", "waits", "--out", str(out)]) == 1
    cut = json.loads(out.read_text())["waits"]
    assert cut["error"] == "no result after 4 s" and any('File "' in line for line in cut["last lines"])
