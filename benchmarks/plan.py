"""Predicted against measured memory: `python -m lightning_cgrpo plan` beside real updates on the CPU.

    python -m benchmarks.plan                # all configurations, some CPU minutes; writes benchmarks/results/plan.json
    python -m benchmarks.plan vision lora    # some of them

Each configuration trains random weights for two updates in its own process (a fork), on one thread. Measured is the
largest resident set of each phase of the second update (VmHWM of /proc, reset between phases; without phases,
ru_maxrss agrees), above the process before it reads the model. A tiny model loads all libraries first. The C library
returns every freed block of 64 KiB at once, so only memory in use counts.

Answers have the allowed length (min_new_tokens), and all prompts are equally long, as the plan assumes.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer, seed_everything

from benchmarks.plan_models import CONFIGURATIONS, configuration, make_model, small_model
from lightning_cgrpo import ConstrainedGRPO
from lightning_cgrpo.cli.preparation import M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
from lightning_cgrpo.planning.plan import plan
from lightning_cgrpo.planning.workload import instantiate

RESULTS = Path(__file__).parent / "results" / "plan.json"
UPDATES = 2


class Peaks:
    """Bytes of each phase's largest resident set."""

    def __init__(self) -> None:
        self.of_phase: dict[str, int] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM to the present size
        yield
        self.of_phase[name] = max(self.of_phase.get(name, 0), memory("VmHWM"))


def memory(name: str) -> int:
    """Read VmRSS, or its peak VmHWM, from /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


class Watched(ConstrainedGRPO):
    """Phases are watched from the second update on, because before, the optimizer has no state."""

    peaks = Peaks()

    @contextmanager
    def _watch(self, name: str) -> Iterator[None]:
        if not self.trainer.global_step:
            yield
            return
        with self.peaks.of(name):
            yield

    def sample(self, *args: Any) -> Any:
        with self._watch("rollout"):
            return super().sample(*args)

    def _log_probs(self, *args: Any) -> Any:
        with self._watch("passes without gradient"):
            return super()._log_probs(*args)

    def accumulate(self, *args: Any) -> None:
        with self._watch("training passes"):
            super().accumulate(*args)

    def _learn_values(self, *args: Any) -> None:
        with self._watch("critic's steps"):
            super()._learn_values(*args)

    def configure_optimizers(self) -> Any:
        configured = super().configure_optimizers()
        # With a critic: lists of optimizers, the policy's first, and of schedules.
        optimizer = configured[0][0] if isinstance(configured, tuple) else configured
        step = optimizer.step

        def watched(*args: Any, **kwargs: Any) -> Any:
            with self._watch("optimizer step"):
                return step(*args, **kwargs)

        optimizer.step = watched
        return configured


def fit(module: Any, data: Any, updates: int) -> None:
    Trainer(
        max_steps=updates, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(module, data)  # fmt: skip


def give_back() -> None:
    """Have memory returned to the system when freed, unlike the command line (`preparation.reuse_blocks`)."""
    for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
        ctypes.CDLL(None).mallopt(option, 1 << 16)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def measure(of: dict[str, Any], folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    seed_everything(0, verbose=False)
    small = {**of, "prompt_tokens": 16, "answer_tokens": 3, "prompts": 1, "group": 2, "image_size": 56}
    warm = instantiate(configuration(folder / "small", small))
    give_back()
    fit(*warm, updates=2)
    config = configuration(folder / "model", of)
    module, data = instantiate(config)
    del warm
    give_back()
    Watched.peaks = Peaks()
    before = memory("VmRSS")
    module.policy.load()
    tokens, inputs = module.policy.read_prompts([data._prompt(0)])
    patches = inputs["patches"].shape[1] if inputs else None
    predicted = plan(config, prompt_tokens=len(tokens[0]), patches=patches)
    give_back()
    fit(module, data, UPDATES)
    measured = {phase: size - before for phase, size in Watched.peaks.of_phase.items()}
    return {"measured": measured, "predicted": predicted.memory.phases, "parameters": predicted.parameters}


def compare(measured: dict[str, int], predicted: dict[str, dict[str, int]]) -> dict[str, list[int]]:
    """Predicted and measured bytes of each measured phase, and of the peak."""
    totals = {name: sum(parts.values()) for name, parts in predicted.items()}
    training = ("backward begins", "backward ends")
    without = ("reference", "old log-probabilities")
    phases = {
        "rollout": totals["rollout"],
        "passes without gradient": max((totals[name] for name in without if name in totals), default=0),
        "training passes": max(totals[name] for name in training),
        "optimizer step": totals["optimizer step"],
        "critic's steps": max((size for name, size in totals.items() if name.startswith("critic: ")), default=0),
    }
    missing = {"rollout", "training passes", "optimizer step"} - set(measured)
    assert not missing, f"phases without a measurement: {missing}"
    rows = {name: [phases[name], size] for name, size in measured.items()}
    return {**rows, "peak": [max(totals.values()), max(measured.values())]}


def run(name: str) -> dict[str, Any]:
    of = CONFIGURATIONS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        make_model(path / "model", of["model"])
        small_model(path / "small", of)
        # Forked: what this process has imported is in the child's resident set, and so in both sides of a difference.
        child = os.fork()
        if not child:
            code = 1
            try:
                (path / "found.json").write_text(json.dumps(measure(of, path)))
                code = 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(code)
        if os.waitpid(child, 0)[1]:
            raise SystemExit(f"{name} failed, see above")
        found = json.loads((path / "found.json").read_text())
    rows = compare(found["measured"], found["predicted"])
    return {
        "configuration": of,
        "parameters": found["parameters"],
        "megabytes": {
            phase: {"predicted": round(p / 1e6, 1), "measured": round(m / 1e6, 1), "ratio": round(p / m, 3)}
            for phase, (p, m) in rows.items()
        },
        "predicted_parts_megabytes": {
            phase: {part: round(size / 1e6, 1) for part, size in parts.items()}
            for phase, parts in found["predicted"].items()
        },
    }


def main(arguments: list[str] | None = None) -> None:
    # As a module by its name, since configurations name classes of it.
    from benchmarks import plan as by_name

    if __name__ == "__main__":
        by_name.main(arguments)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CONFIGURATIONS)}; by default all")
    given = parser.parse_args(arguments)
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for name in given.names or CONFIGURATIONS:
        results[name] = run(name)
        RESULTS.write_text(json.dumps({key: results[key] for key in CONFIGURATIONS if key in results}, indent=1) + "\n")
        used = "seen while the formulas were written" if CONFIGURATIONS[name]["used"] else "held out"
        print(f"{name} ({results[name]['parameters'] / 1e6:.0f} M parameters, {used})")
        for phase, row in results[name]["megabytes"].items():
            print(
                f"  {phase:<24} {row['predicted']:8.1f} MB predicted {row['measured']:8.1f} measured {row['ratio']:.3f}"
            )


if __name__ == "__main__":
    main()
