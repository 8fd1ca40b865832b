"""What the first process makes reaches all processes, and so does its error."""

from typing import Any

import pytest

from lightning_cgrpo.core import distributed
from lightning_cgrpo.core.distributed import by_first
from lightning_cgrpo.core.errors import UserError


def on_both(monkeypatch: pytest.MonkeyPatch, make: Any) -> list[Any]:
    """Results or errors of two processes, one after the other, through a broadcast that keeps what was sent."""
    sent: list[Any] = []
    found = []
    for rank in range(2):

        def broadcast(values: list[Any], rank: int = rank) -> None:
            if rank == 0:
                sent[:] = values
            values[:] = sent

        monkeypatch.setattr(distributed, "world", lambda rank=rank: (rank, 2))
        monkeypatch.setattr(distributed.dist, "broadcast_object_list", broadcast)
        try:
            found.append(by_first(lambda rank=rank: make(rank)))
        except (UserError, OSError) as error:
            found.append(error)
    return found


def test_a_value_of_the_first_is_every_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_both(monkeypatch, lambda rank: f"made by {rank}") == ["made by 0"] * 2


@pytest.mark.parametrize("kind", [UserError, PermissionError])
def test_an_error_of_the_first_ends_all(monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    def fail(rank: int) -> None:
        assert rank == 0
        raise kind("the register is damaged")

    first, second = on_both(monkeypatch, fail)
    assert type(first) is kind and isinstance(second, UserError) and str(first) == str(second)
