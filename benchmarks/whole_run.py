"""A whole gridworld run from the command line, with all logging, against a plain PyTorch loop.

    python benchmarks/whole_run.py                  # 8,000 updates of each, one after the other: 5 to 10 minutes
    python benchmarks/whole_run.py --updates 500

Prints CPU seconds (user + system) on one thread, including start-up, which takes most of the time below some 500
updates. Fails if the library takes more than 1.5 times as long as the loop, which computes the same numbers
(tests/test_plain_example.py).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
BOUND = 1.5


def cpu_seconds(command: list[str]) -> float:
    """CPU seconds of a command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=8000)
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lightning_cgrpo", "fit", "-c", "configs/gridworld.yaml"]
        library = cpu_seconds(
            [*command, f"--trainer.max_steps={options.updates}", f"--trainer.logger.save_dir={folder}"]
        )
    plain = cpu_seconds([sys.executable, "examples/plain_cgrpo.py", str(options.updates)])
    results = {
        "updates": options.updates,
        "library": round(library, 1),
        "plain": round(plain, 1),
        "torch": torch.__version__,
    }
    print(f"{options.updates} updates: library {library:.0f} s, plain loop {plain:.0f} s, ratio {library / plain:.2f}")
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n")
    if library > BOUND * plain:
        sys.exit(f"Expected at most {BOUND} times the loop's time.")


if __name__ == "__main__":
    main()
