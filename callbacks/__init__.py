"""What one adds to a run: multipliers, and things that look inside."""

from lightning_cgrpo.callbacks.fixed_weights import FixedWeights
from lightning_cgrpo.callbacks.lagrangian import LagrangianCallback

__all__ = ["FixedWeights", "LagrangianCallback"]
