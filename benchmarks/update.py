"""One gridworld update: the shipped library against a plain PyTorch loop.

    python benchmarks/update.py            # about two minutes; fails if the library costs more than 1.5 x the loop

Both compute the same numbers (tests/test_plain_example.py), with a fresh and a trained policy, in turns in one
process on one thread. Times are CPU seconds, which other load inflates: compare within a run. The library runs
`configs/gridworld.yaml` with Lightning's loop, logging, progress bar and checkpoints.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.cli.command_line import CommandLine
from lightning_cgrpo.cli.preparation import prepare, reuse_blocks

BOUND = 1.5
ROOT = Path(__file__).parents[1]
Weights = dict[str, torch.Tensor]


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("plain_cgrpo", ROOT / "examples" / "plain_cgrpo.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Clock(Callback):
    """CPU seconds of each update but the first."""

    def __init__(self) -> None:
        self.ticks: list[float] = []

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self.ticks.append(time.process_time())

    def seconds(self) -> float:
        return (self.ticks[-1] - self.ticks[0]) / (len(self.ticks) - 1)


class Run(CommandLine):
    """The command, with given weights and a clock."""

    def __init__(self, folder: str, updates: int, weights: Weights) -> None:
        self.weights, self.clock = weights, Clock()
        config, flags = read_arguments(
            "fit",
            [
                "-c",
                "configs/gridworld.yaml",
                f"--trainer.max_steps={updates}",
                f"--trainer.logger.save_dir={folder}",
                "--callbacks.initial_rates=null",
            ],
        )
        prepare("fit", config)
        super().__init__("fit", config, flags)

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        trainer = super().instantiate_trainer(**kwargs)
        trainer.callbacks.append(self.clock)
        return trainer

    def after_instantiate_classes(self) -> None:
        self.model.policy.net.load_state_dict(self.weights)


def library(updates: int, weights: Weights) -> float:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        return Run(folder, updates, weights).clock.seconds()


def plain(example: Any, updates: int, weights: Weights) -> float:
    network = example.make_policy()
    network.load_state_dict(weights)
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-4, fused=True)
    with contextlib.redirect_stdout(io.StringIO()):
        example.train(1, network, optimizer)
        started = time.process_time()
        example.train(updates - 1, network, optimizer, first=1)
    return (time.process_time() - started) / (updates - 1)


def trained(example: Any, updates: int) -> Weights:
    torch.manual_seed(0)
    network = example.make_policy()
    with contextlib.redirect_stdout(io.StringIO()):
        example.train(updates, network, torch.optim.Adam(network.parameters(), lr=5e-4, fused=True))
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=60, help="updates of each measurement")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each kind, in turns")
    parser.add_argument("--training", type=int, default=1500, help="updates that train the trained policy")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    reuse_blocks()  # As the command does; so the plain loop has it from the start, too.
    example = load_example()
    torch.manual_seed(0)
    policies = {"fresh": example.make_policy().state_dict(), "trained": trained(example, options.training)}
    results: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__}
    for name, weights in policies.items():
        times: dict[str, list[float]] = {"plain": [], "library": []}
        for _ in range(options.repeats):
            times["plain"].append(plain(example, options.updates, weights))
            times["library"].append(library(options.updates, weights))
        ratio = statistics.median(times["library"]) / statistics.median(times["plain"])
        results[name] = {kind: round(statistics.median(t) * 1e3, 2) for kind, t in times.items()} | {
            "ratio": round(ratio, 3)
        }
        numbers = results[name]
        print(
            f"{name:8s} plain {numbers['plain']:6.2f} ms   library {numbers['library']:6.2f} ms   ratio {ratio:.2f}",
            flush=True,
        )
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n")
    if any(results[name]["ratio"] > BOUND for name in policies):
        sys.exit(f"Expected ratios of at most {BOUND}.")


if __name__ == "__main__":
    main()
