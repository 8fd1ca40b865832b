"""A whole gridworld run from the command line, with all logging, against a plain PyTorch loop.

    python benchmarks/whole_run.py                  # 8,000 updates of each, one after the other: 5 to 10 minutes
    python benchmarks/whole_run.py --updates 500

Prints CPU seconds (user + system) on one thread, including start-up, and of the matrix products alone. Fails if the
library takes more than 1.5 times as long as the loop, which computes the same numbers (tests/test_plain_example.py);
below some 500 updates start-up takes most of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).parents[1]
LAYERS = ((30, 128), (128, 128), (128, 5))
ANSWERS, EPOCHS, ROWS = 64, 2, 1500
BOUND = 1.5


def cpu_seconds(command: list[str]) -> float:
    """CPU seconds of a command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def products(rows: int, backward: bool) -> float:
    """CPU seconds per row of the policy's matrix products, in a pass over `rows` rows."""
    tensors = [(torch.randn(rows, i), torch.randn(i, o), torch.randn(rows, o)) for i, o in LAYERS]

    def once() -> None:
        for number, (inputs, weight, gradient) in enumerate(tensors):
            inputs @ weight
            if backward:
                inputs.T @ gradient
                if number:
                    gradient @ weight.T

    return timed(once) / rows


def timed(function: Callable[[], None], repeats: int = 100) -> float:
    for _ in range(10):
        function()
    started = time.process_time()
    for _ in range(repeats):
        function()
    return (time.process_time() - started) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=8000)
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lightning_cgrpo", "fit", "-c", "configs/gridworld.yaml"]
        library = cpu_seconds(
            [*command, f"--trainer.max_steps={options.updates}", f"--trainer.logger.save_dir={folder}"]
        )
        log = EventAccumulator(str(next(Path(folder).glob("*/version_*"))), size_guidance={"scalars": 0})
        log.Reload()
        lengths = [event.value for event in log.Scalars("rollout/length")]
    plain = cpu_seconds([sys.executable, "examples/plain_cgrpo.py", str(options.updates)])
    steps = sum(lengths) / len(lengths) * ANSWERS * options.updates
    with torch.inference_mode():
        floor = steps * (products(ANSWERS, backward=False) + EPOCHS * products(ROWS, backward=True))
    results = {
        "updates": options.updates,
        "library": round(library, 1),
        "plain": round(plain, 1),
        "matrix products": round(floor, 1),
        "environment steps": round(steps),
        "torch": torch.__version__,
    }
    print(f"{options.updates} updates: library {library:.0f} s, plain loop {plain:.0f} s, ratio {library / plain:.2f};")
    print(f"the matrix products of their {steps / 1e6:.1f} million steps alone take {floor:.0f} s.")
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n")
    if library > BOUND * plain:
        sys.exit(f"Expected at most {BOUND} times the loop's time.")


if __name__ == "__main__":
    main()
