"""Ten minutes on a GPU, of which the first decide most: the machine, decoding, training, one update, the first update
beside the CPU, TRL, weights between processes, shared prompts, waits of the host.

    python -m benchmarks.gpu                          # all parts; writes benchmarks/results/gpu.json
    python -m benchmarks.gpu --only decoding passes   # some parts
    python -m benchmarks.gpu --tiny                   # all parts in small, to see that none fails

Each part is a process with a time limit, and its result is written as soon as it ends. A part that reaches its limit
keeps the measurements so far, and the stacks of its threads; the next part runs. Without a GPU, tiny parts run on a
pretended device (tests/pretended_device.py), and only --out writes results.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "gpu.json"
LIMITS = {
    "machine": 25,
    "decoding": 120,
    "choice": 20,
    "passes": 90,
    "head": 20,
    "update": 80,
    "first": 50,
    "trl": 90,
    "processes": 35,
    "prompts": 30,
    "waits": 40,
}
"""Seconds of each part on a GPU, in the order of what they decide: ten minutes in all."""
TINY_LIMIT = 600
GRACE = 5
"""Seconds for the stacks of a part at its limit."""
LINES = 30
"""Lines of a failed part's output that are kept."""


def measure(part: str, limit: float, tiny: bool) -> dict[str, Any]:
    started = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.gpu.part", part, str(started + limit), str(int(tiny))]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if part == "first":
        environment["NVIDIA_TF32_OVERRIDE"] = "0"  # in full float32, as the CPU computes
    # Files, because a process that a part leaves behind would hold pipes open.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=errors, start_new_session=True
        )
        try:
            status = process.wait(limit + GRACE)
        except subprocess.TimeoutExpired:
            status = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
        process.wait()
        output.seek(0)
        errors.seek(0)
        results = [line for line in output.read().splitlines() if line.startswith("{")]
        told = [line for line in errors.read().splitlines() if line.strip()]
    result = json.loads(results[-1]) if results else {}
    seconds = round(time.monotonic() - started, 1)
    if status == 0 and results:
        return {**result, "seconds": seconds}
    error = f"no result after {limit:g} s" if seconds >= limit else f"exit status {status}"
    return {**result, "error": error, "last lines": told[-LINES:], "seconds": seconds}


def main(arguments: list[str] | None = None) -> int:
    """Measure the parts, print a table, write the JSON; return the number of failed parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=LIMITS, default=list(LIMITS), metavar="PART", help=str([*LIMITS]))
    parser.add_argument("--tiny", action="store_true", help="measure in small; so it is without a GPU")
    parser.add_argument("--out", type=Path, help=f"by default {RESULTS.relative_to(ROOT)}, if a GPU was measured")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("There is no GPU here: the parts check themselves, in small, on a pretended device.", flush=True)
    tiny = options.tiny or not torch.cuda.is_available()
    if options.out is None and not tiny:
        options.out = RESULTS
    results: dict[str, dict[str, Any]] = {}
    for part in options.only:
        results[part] = measure(part, TINY_LIMIT if tiny else LIMITS[part], tiny)
        print(f"{part}: {json.dumps(results[part])}", flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    table = Table("part", "passed", "seconds", title="Ten minutes on a GPU")
    for part, result in results.items():
        passed = "no" if "error" in result or result.get("passed") is False else "yes"
        table.add_row(part, passed, str(result.get("seconds", "")))
    Console().print(table)
    return sum("error" in result or result.get("passed") is False for result in results.values())


if __name__ == "__main__":
    sys.exit(main())
