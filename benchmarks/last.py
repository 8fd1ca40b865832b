"""Means of a run's tags over its last updates, read from its TensorBoard log.

python benchmarks/last.py runs/gridworld/version_0 --updates 1000
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

SHOWN = ("reward/", "rate/", "multiplier/", "effective_weight/", "groups/informative/", "rollout/", "time/")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder with the event file")
    parser.add_argument("--updates", type=int, default=1000, help="how many of the last updates")
    options = parser.parse_args()
    events = EventAccumulator(str(options.run), size_guidance={"scalars": 0})
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if tag.startswith(SHOWN)]
    if not tags:
        parser.error(f"no training scalars in {options.run}")
    end = max(event.step for tag in tags for event in events.Scalars(tag))
    print(f"means over the updates after {end - options.updates}, of {end + 1}")
    for tag in sorted(tags):
        values = [event.value for event in events.Scalars(tag) if event.step > end - options.updates]
        if values:
            print(f"{tag:32s} {sum(values) / len(values):.4f}")


if __name__ == "__main__":
    main()
