"""What the first process makes reaches all processes, and so does its error."""

import pytest

from lightning_cgrpo.core.distributed import by_first
from lightning_cgrpo.core.errors import UserError
from tests.fake_world import in_processes


def test_a_value_of_the_first_is_every_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_processes(monkeypatch, lambda rank: by_first(lambda: f"made by {rank}"))[0] == ["made by 0"] * 2


@pytest.mark.parametrize("kind", [UserError, PermissionError])
def test_an_error_of_the_first_ends_all(monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    def fail(rank: int) -> Exception:
        def make() -> None:
            assert rank == 0
            raise kind("the register is damaged")

        with pytest.raises((UserError, PermissionError)) as caught:
            by_first(make)
        return caught.value

    (first, second), _ = in_processes(monkeypatch, fail)
    assert type(first) is kind and isinstance(second, UserError) and str(first) == str(second)
