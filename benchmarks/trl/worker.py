"""Measure one side and setting, and print a JSON line."""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch

from benchmarks.trl.measure import Meter, quiet
from benchmarks.trl.settings import SETTINGS, save_model


def main() -> None:
    side, number, updates = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")  # TF32 on each side, as ours sets it by itself
    with quiet(), tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder))
        meter = Meter()
        if side == "ours":
            from benchmarks.trl.ours import run
        else:
            from benchmarks.trl.theirs import project_answers_only, run

            if side == "trl, answers only":
                project_answers_only()
            elif side == "trl, vLLM":
                run = partial(run, use_vllm=True, vllm_mode="colocate", vllm_gpu_memory_utilization=0.3)
        run(Path(folder), SETTINGS[number], updates, meter)
    print(json.dumps(meter.results()))


if __name__ == "__main__":
    main()
