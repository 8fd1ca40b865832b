"""Thirty changes between a run and its resume, drawn by a seed from all settings of two configurations.

Each is told, refused, or in the written list of settings that change no number.
"""

import random
import re
import shlex
from typing import Any

import pytest

from lightning_cgrpo.__main__ import main
from lightning_cgrpo.core.errors import UserError
from tests.quiet import GRIDWORLD, QUIET
from tests.settings.test_settings import changes_no_number, leaves, parsed

WORDS = shlex.split(
    f"-c configs/gsm8k.yaml {QUIET} --callbacks.initial_rates=null --callbacks.samples=null --callbacks.progress=null "
    "--data.prompts_per_update=2 --data.train_prompts=8 --data.val_prompts=2 --model.group_size=2 "
    "--model.sampler.max_new_tokens=8"
)
RUNS = {"gridworld": GRIDWORLD, "words": WORDS}
COUNT = 15
"""Changes of each configuration."""


def other(value: Any) -> Any:
    """A valid other value of the same kind; None where there is none that is known to be valid."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 0.5 if value else 0.01
    return None


def drawn(arguments: list[str], seed: int) -> list[tuple[str, Any]]:
    """Settings that change a number, with another value."""
    config = parsed(*arguments)
    found = []
    for above, path in leaves(config):
        # PyTorch's own optimizers cannot step parameters with `differentiable`, nor with `capturable` on a CPU.
        value = None if path[-1] in ("differentiable", "capturable") else other(above[path[-1]])
        if value is not None and path[0] in ("model", "data", "callbacks") and not changes_no_number(config, path):
            keys = [str(part) for part in path if part != "init_args"]
            found.append((".".join(keys), value))
    return random.Random(seed).sample(sorted(found), COUNT)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_each_of_thirty_changes_is_told_or_refused(name, folder, capsys):
    run = [*RUNS[name], "--trainer.logger.name=run", "--trainer.limit_val_batches=0"]
    main(["fit", *run, "--trainer.max_steps=1"])
    last = "--ckpt_path=runs/run/version_0/checkpoints/last.ckpt"
    outcomes = {}
    for key, value in drawn(RUNS[name], seed=56):
        capsys.readouterr()
        change = f"--{key}={str(value).lower()}"
        try:
            main(["fit", *run, "--trainer.max_steps=2", last, change])
        except UserError as error:
            outcomes[change] = f"refused: {error}"
            continue
        printed = capsys.readouterr()
        told = re.findall(r"^from update 1: (.*)$", printed.out + printed.err, re.MULTILINE)
        outcomes[change] = next((line for line in told if key in line), "silent")
    with capsys.disabled():
        print("", *(f"{change}: {outcome}" for change, outcome in outcomes.items()), sep="\n")
    assert len(outcomes) == COUNT and "silent" not in outcomes.values()
    assert sum(not outcome.startswith("refused") for outcome in outcomes.values()) >= COUNT // 2
