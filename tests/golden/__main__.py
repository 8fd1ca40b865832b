"""Compare or write golden curves, see `curves`."""

import argparse
import sys

from tests.golden.curves import CURVES, committed, difference, trained


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("names", nargs="*", default=[], help=f"of {', '.join(CURVES)}; by default all")
    parser.add_argument("--write", action="store_true", help="write the curves, in the place of a comparison")
    arguments = parser.parse_args()
    if unknown := {*arguments.names} - CURVES.keys():
        parser.error(f"Expected names of {', '.join(CURVES)}, but got {sorted(unknown)[0]}.")
    differs = False
    for name in arguments.names or CURVES:
        now = trained(name)
        if arguments.write:
            committed(name).write_text(now, encoding="utf-8")
            print(f"{name}: written, {len(now.splitlines()) - 1} updates")
            continue
        told = difference(committed(name).read_text(encoding="utf-8"), now)
        differs = differs or bool(told)
        print(f"{name}: {told or 'equal'}", flush=True)
    sys.exit(differs)


if __name__ == "__main__":
    main()
