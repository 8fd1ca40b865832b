"""Measure one side and setting, and print a JSON line."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from benchmarks.trl.measure import Meter, quiet
from benchmarks.trl.settings import SETTINGS, save_model


def main() -> None:
    side, number, updates = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with quiet(), tempfile.TemporaryDirectory() as folder:
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
