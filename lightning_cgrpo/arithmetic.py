"""Where the numbers of an update are exact enough."""

from __future__ import annotations

from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import MPSAccelerator

from lightning_cgrpo.errors import UserError


def check_arithmetic(trainer: Trainer) -> None:
    """Raises:
    UserError: for a precision or a device on which multipliers or ratios would be wrong.
    """
    precision = str(trainer.precision)
    if precision in ("bf16-true", "16-true", "16-mixed"):
        raise UserError(
            f"Expected precision 32-true, bf16-mixed or 64-true, but got {precision}: multipliers and ratios need more "
            "digits than half-precision weights have, and gradients aren't rescaled; try bf16-mixed, or bfloat16 "
            "weights of the policy alone (policy.dtype, with LoRA)."
        )
    if isinstance(trainer.accelerator, MPSAccelerator):
        raise UserError("Expected a CPU or a CUDA device, but got MPS, which has no float64; try accelerator: cpu.")
