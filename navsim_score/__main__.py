"""``python -m navsim_score``: score trajectories as NAVSIM v2 does, and write NAVSIM's scenes for it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from driving_scenes.errors import InputError, printable
from navsim_score.command import main as score
from navsim_score.command.scenes import main as scenes
from navsim_score.command.store import main as store

COMMANDS = {"score": score, "scenes": scenes, "store": store}
USAGE = """usage: python -m navsim_score score --scenes PATH --trajectories PATH [option ...]
       python -m navsim_score scenes --split NAME --out DIR --allow-pickles
       python -m navsim_score store (--caches DIR --allow-pickles | --scenes PATH) --out DIR

Score driving trajectories as NAVSIM v2 does (EPDMS), write the scenes of one of NAVSIM's splits as files for it, or
convert metric caches once into a store for training loops.
`python -m navsim_score score --help` lists the options."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status, 2 after an unusable input, which is told in one line."""
    command = arguments[0] if arguments else "--help"
    if command in ("-h", "--help"):
        print(USAGE)
        return 0
    if command not in COMMANDS:
        error = (
            f"Expected score, scenes or store, but got '{printable(command)}', try python -m navsim_score score --help."
        )
        print(f"navsim_score: error: {error}", file=sys.stderr)
        return 2
    try:
        COMMANDS[command](arguments[1:])
    except InputError as error:
        lines = map(printable, f"navsim_score: error: {error}".split("\n"))
        print(*lines, sep="\n", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
