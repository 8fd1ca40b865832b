"""Golden curves: 20 updates of six configurations, as committed text.

    python -m tests.golden                 # compare all with the committed curves; the first difference of each
    python -m tests.golden --write gridworld # write again, after a change that is meant to change training

On the kind of CPU that wrote a curve, with its torch, each number is equal to the last digit. Elsewhere, numbers are
equal within `ROUNDING`, because other kernels round otherwise.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import os
import platform
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROUNDING = 1e-2
"""Largest relative difference of a number on another kind of CPU: 20 updates enlarge rounding."""
UPDATES = 20
SMALL = "--data.prompts_per_update=2 --model.group_size=4"
GRIDWORLD = (
    f"-c configs/gridworld.yaml -c configs/ablations/gridworld/no_look.yaml {SMALL} --model.policy.hidden=[16] "
    "--callbacks.pictures=null"
)
CURVES = {
    "gridworld": GRIDWORLD,
    "scalarized_rewards": f"{GRIDWORLD} -c configs/ablations/gridworld/scalarized_rewards.yaml",
    "critic": f"{GRIDWORLD} -c configs/ablations/gridworld/ppo_lagrangian.yaml",
    "cartpole": f"-c configs/cartpole.yaml {SMALL} --callbacks.pictures=null",
    "calculator": f"-c configs/calculator.yaml {SMALL} --model.sampler.max_new_tokens=96",
    "word_problems": (
        f"-c configs/gsm8k.yaml -c configs/ablations/gsm8k/no_look.yaml {SMALL} --model.sampler.max_new_tokens=48"
    ),
}
"""Arguments of ``fit`` by curve."""
QUIET = (
    f"--trainer.max_steps={UPDATES} --trainer.max_epochs=-1 --trainer.limit_val_batches=0 --trainer.logger=CSVLogger "
    "--trainer.logger.save_dir=curve --trainer.logger.name=run --trainer.log_every_n_steps=1 "
    "--trainer.enable_checkpointing=false --trainer.enable_progress_bar=false --trainer.enable_model_summary=false "
    "--callbacks.initial_rates=null --callbacks.progress=null --seed_everything=7"
)
TAGS = re.compile(r"(reward|policy|rate|mean|weight|multiplier|threshold|critic|rollout)/.*")


def machine() -> str:
    """The kind of CPU, and what decides how it rounds."""
    import torch

    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    model = re.search(r"model name\s*:\s*(.+)", text)
    threads = os.environ.get("OMP_NUM_THREADS", "-")
    return f"{model[1] if model else platform.processor()}, {torch.backends.cpu.get_cpu_capability()}, " + (
        f"torch {torch.__version__.partition('+')[0]}, {threads} threads"
    )


def trained(name: str) -> str:
    """The curve of a training now: a line of each update, with tags and numbers."""
    from lightning_cgrpo.__main__ import main

    with _in_folder(), contextlib.redirect_stdout(io.StringIO()):
        main(["fit", *CURVES[name].split(), *QUIET.split()])
        with Path("curve/run/version_0/metrics.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    lines = [machine()]
    for row in rows:
        numbers = {tag: value for tag, value in sorted(row.items()) if value and TAGS.fullmatch(tag)}
        if numbers:
            lines.append(" ".join([row["step"], *(f"{tag}={value}" for tag, value in numbers.items())]))
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def _in_folder() -> Iterator[None]:
    """An empty folder that sees the configurations."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "configs").symlink_to(HERE.parents[1] / "configs")
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def difference(committed: str, now: str) -> str:
    """The first difference of two curves; empty if they are equal, by the rule of the module."""
    (kind, *before), (other, *after) = committed.splitlines(), now.splitlines()
    for old, new in zip(before, after, strict=False):
        olds, news = (dict(pair.split("=") for pair in line.split()[1:]) for line in (old, new))
        if olds.keys() != news.keys():
            return f"update {old.split()[0]}: other tags, {sorted(olds.keys() ^ news.keys())}"
        for tag, value in olds.items():
            close = math.isclose(float(value), float(news[tag]), rel_tol=ROUNDING, abs_tol=ROUNDING / 10)
            if value != news[tag] and (kind == other or not close):
                return f"update {old.split()[0]}: {tag} was {value}, and is {news[tag]}"
    return "" if len(before) == len(after) else f"{len(before)} updates before, and {len(after)} now"


def committed(name: str) -> Path:
    return HERE / f"{name}.txt"
