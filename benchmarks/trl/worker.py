"""Measure one side and setting, and print a JSON line."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path

import torch

from benchmarks.trl.measure import Meter
from benchmarks.trl.settings import SETTINGS, save_model


def main() -> None:
    side, number, updates = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    # Both write to the output what they log.
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder))
        meter = Meter()
        if side == "ours":
            from benchmarks.trl.ours import run
        else:
            from benchmarks.trl.theirs import project_answers_only, run

            if side != "trl":
                project_answers_only()
        run(Path(folder), SETTINGS[number], updates, meter)
    print(json.dumps(meter.results()))


if __name__ == "__main__":
    main()
