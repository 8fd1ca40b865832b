"""Ten minutes on a GPU: versions, shared prompts, waits of the host, agreement with the CPU, throughput,
weights between processes, TRL.

    python -m benchmarks.gpu                          # all parts; writes benchmarks/results/gpu.json
    python -m benchmarks.gpu --only prompts waits     # some parts

Each part is a process with a time limit; after a failure or timeout, the next part runs. Without a GPU, small parts
run on a pretended device (tests/pretended_device.py), and only --out writes results.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "gpu.json"
LIMITS = {
    "versions": 30,
    "prompts": 60,
    "waits": 70,
    "agreement": 90,
    "throughput": 200,
    "processes": 90,
    "trl": 60,
}
"""Seconds of each part on a GPU: ten minutes in all."""
PRETENDED_LIMIT = 600


def measure(part: str, limit: float) -> dict[str, Any]:
    started = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.gpu.part", part]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if part == "agreement":
        environment["NVIDIA_TF32_OVERRIDE"] = "0"  # in full float32, as the CPU computes
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired as late:
        # Some parts print lines of what they have so far.
        written = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        last = written.rpartition("\n")[0].rpartition("\n")[2]
        return {**(json.loads(last) if last.startswith("{") else {}), "error": f"no result after {limit:.0f} s"}
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode or not last.startswith("{"):
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return {"error": lines[-1] if lines else f"exit status {done.returncode}"}
    return {**json.loads(last), "seconds": round(time.monotonic() - started, 1)}


def main(arguments: list[str] | None = None) -> int:
    """Measure the parts, print a table, write the JSON; return the number of failed parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=LIMITS, default=list(LIMITS), metavar="PART", help=str([*LIMITS]))
    parser.add_argument("--out", type=Path, default=RESULTS if torch.cuda.is_available() else None)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("There is no GPU here: the parts check themselves, in small, on a pretended device.", flush=True)
    results: dict[str, dict[str, Any]] = {}
    for part in options.only:
        results[part] = measure(part, LIMITS[part] if torch.cuda.is_available() else PRETENDED_LIMIT)
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
