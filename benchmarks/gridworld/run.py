"""The paper's gridworld, all of it.

    python -m benchmarks.gridworld.run                  # everything; goes on where it was stopped
    python -m benchmarks.gridworld.run paper sweep      # some of it
    python -m benchmarks.gridworld.run --list

Each of two cores takes up to five runs at a time, whose rollouts are one batched computation.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.gridworld.experiments import SETS, Run, sweep
from benchmarks.gridworld.worker import FINISHED, work


def train(runs: Sequence[Run], logs: Path, workers: int, lanes: int) -> list[str]:
    """Train what isn't finished yet; returns the errors of runs that failed."""
    todo = [run for run in runs if not (logs / run.name / FINISHED).exists()]
    if not todo:
        return []
    context = multiprocessing.get_context("spawn")
    taken, messages = context.Value("i", 0), context.Queue()
    lanes = min(lanes, -(-len(todo) // workers))
    processes = [
        context.Process(target=work, args=(todo, taken, lanes, str(logs), messages), daemon=True)
        for _ in range(min(workers, len(todo)))
    ]
    # On a thread each: more would compete for the cores.
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    for process in processes:
        process.start()
    errors: list[str] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("updates"),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    done, finished = {run.name: 0 for run in todo}, 0
    with Progress(*columns, speed_estimate_period=300) as progress:
        bar = progress.add_task(f"0 of {len(todo)} runs", total=sum(run.updates for run in todo))
        lengths = {run.name: run.updates for run in todo}
        while any(process.is_alive() for process in processes) or not messages.empty():
            try:
                name, updates, error = messages.get(timeout=1)
            except queue.Empty:
                continue
            if error is not None:
                errors.append(f"{name}\n{error}")
                progress.console.print(f"[red]failed[/red] {name}: {error.strip().splitlines()[-1]}")
            if error is not None or updates == lengths[name]:
                finished += updates != done[name] or error is not None
            done[name] = updates
            progress.update(bar, completed=sum(done.values()), description=f"{finished} of {len(todo)} runs")
    codes = [process.exitcode for process in processes if process.exitcode]
    return errors + [f"A worker ended with exit code {code}." for code in codes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", choices=[[], *SETS], help=f"of {', '.join(SETS)}; all by default")
    parser.add_argument("--logs", type=Path, default=Path("runs/benchmark_gridworld"), help="folder of the runs' logs")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes; one per core")
    parser.add_argument("--lanes", type=int, default=5, help="runs at a time in each process")
    parser.add_argument("--full-sweep", action="store_true", help="sweep with 8,000 updates rather than 2,000")
    parser.add_argument("--list", action="store_true", help="only name the runs and whether they are finished")
    options = parser.parse_args()
    chosen = {name: SETS[name]() for name in options.sets or SETS}
    if options.full_sweep and "sweep" in chosen:
        chosen["sweep"] = sweep(8000)
    runs = [run for part in chosen.values() for run in part]
    if options.list:
        for run in runs:
            print("finished" if (options.logs / run.name / FINISHED).exists() else "open    ", run.name)
        return
    started = time.time()
    errors = train(runs, options.logs, options.workers, options.lanes)
    if errors:
        sys.exit("\n".join(errors))
    print(f"All {len(runs)} runs are finished, after {(time.time() - started) / 60:.0f} minutes.")


if __name__ == "__main__":
    main()
