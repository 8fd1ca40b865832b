"""What becomes of the processes that Lightning has started when one fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import os, sys, time
from pathlib import Path
from lightning.pytorch import Callback

class Differ(Callback):
    def on_train_batch_end(self, trainer, *_):
        Path(f"process_{trainer.global_rank}").write_text(str(os.getpid()))
        if trainer.global_rank:
            time.sleep(1000)  # as in a collective that the other doesn't come to
        while not Path("process_1").exists():
            time.sleep(0.05)
        raise ValueError("only here")
"""


@pytest.mark.slow
def test_the_others_are_ended_when_the_first_fails(tmp_path):
    (tmp_path / "differ.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "lightning_cgrpo", "fit", "-c", "configs/gridworld.yaml", "--trainer.devices=2"]
    command += ["--trainer.max_steps=3", "--callbacks.initial_rates=null", "--callbacks.differ=differ.Differ"]
    command += ["--data.prompts_per_update=2", "--callbacks.pictures=null", "--trainer.limit_val_batches=0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=300)
    assert result.returncode == 1 and b"only here" in result.stderr
    other = int((tmp_path / "process_1").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(other, 0)
