"""Values of completions, of which some are faults."""

from __future__ import annotations


class Values(list[float | None]):
    """Values of completions as a reward function returns them; None for those that don't apply.

    A fault is None as well, and `FunctionTask` counts it under the tag ``faults/<signal>``.

    Attributes:
        faults: positions of faults.

    Example:
        >>> values = Values([1.0])
        >>> values.append_fault()
        >>> values, values.faults
        ([1.0, None], {1})
    """

    def __init__(self, values: list[float | None] | tuple[float | None, ...] = ()) -> None:
        super().__init__(values)
        self.faults: set[int] = set()

    def append_fault(self) -> None:
        """Append None as a fault."""
        self.faults.add(len(self))
        self.append(None)
