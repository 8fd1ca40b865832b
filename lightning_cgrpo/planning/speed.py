"""From operations and bytes to seconds, at a stated speed."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_cgrpo.planning.flops import Flops
from lightning_cgrpo.planning.traffic import Traffic
from lightning_cgrpo.planning.workload import Workload


@dataclass(frozen=True)
class Speed:
    """What a GPU reaches, not what its data sheet says.

    Args:
        tflops: 10^12 operations a second, in matrix products.
        bandwidth: GB a second, of its memory; None if generating is not to be bound by it.
        link: GB a second that it sends to other GPUs; None if that is not to be counted.
    """

    tflops: float
    bandwidth: float | None = None
    link: float | None = None


def seconds(flops: Flops, traffic: Traffic, work: Workload, speed: Speed) -> dict[str, float]:
    """Seconds of each part on the GPU that has the most prompts, for which the others wait, one part after the other.

    Generating takes what its operations take, or what it takes to read all weights, and the keys and values so far,
    once for every token, whichever is more. Sending is not overlapped.
    """
    share = work.prompts / work.all_prompts
    found = {name: share * value / (speed.tflops * 1e12) for name, value in flops.parts.items()}
    name = "rollout: answers"
    if speed.bandwidth is not None and flops.decoding_bytes:
        found[name] = max(found[name], flops.decoding_bytes / (speed.bandwidth * 1e9))
    if speed.link is not None and traffic.total:
        found["collectives"] = traffic.total / (speed.link * 1e9)
    return found
