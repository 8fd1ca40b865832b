"""One of two processes of fsdp2, one of which has a disk that is full when it writes its part of a checkpoint."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

ARGUMENTS = (
    "fit -c configs/gridworld.yaml --trainer.devices=2 --trainer.strategy=fsdp2 --trainer.max_steps=2 "
    "--trainer.logger=false --trainer.limit_val_batches=0 --trainer.enable_progress_bar=false "
    "--callbacks.progress=null --callbacks.pictures=null --callbacks.layout=null --callbacks.table=null "
    "--callbacks.initial_rates=null --callbacks.checkpoints.dirpath=checkpoints "
    "--data.prompts_per_update=4 --data.train_prompts=12 --data.eval_prompts=4 --model.group_size=4 "
    "--model.sampler.environment.max_steps=20"
)


@contextmanager
def little_room(size: int) -> Iterator[None]:
    """Files can't grow beyond; a disk that is full, but for the name of the error."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


if __name__ == "__main__":
    from lightning_cgrpo.__main__ import run

    folder, victim = sys.argv[1:]
    os.chdir(folder)
    sys.argv = ["lightning_cgrpo", *ARGUMENTS.split()]
    try:
        with little_room(30_000) if os.environ["RANK"] == victim else nullcontext():
            run()
    except SystemExit as ended:
        sys.exit(0 if ended.code == 2 else f"Expected the status 2, but got {ended.code}.")
    sys.exit("Expected a full disk, but there was room.")
