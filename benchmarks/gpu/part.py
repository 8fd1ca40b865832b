"""One part of the GPU check; prints its result as a JSON line."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import sys
import time


def main() -> None:
    """Arguments: part, the moment at which the process writes its threads' stacks and ends, 1 for tiny sizes."""
    part, end, tiny = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "1"
    faulthandler.dump_traceback_later(max(end - time.monotonic(), 0.1), exit=True)
    # Here, because a slow machine may reach its limit while it imports PyTorch.
    from benchmarks.gpu.device import place
    from benchmarks.gpu.parts import PARTS

    started = time.perf_counter()
    # Runs print too, and stdout has the result alone.
    with contextlib.redirect_stdout(sys.stderr), place(tiny) as where:
        result = PARTS[part](where)
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps({**result, "seconds_of_part": round(time.perf_counter() - started, 1)}))


if __name__ == "__main__":
    main()
