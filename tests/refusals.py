"""How a mistake is answered."""

from collections.abc import Callable
from typing import Any

import pytest

from lightning_cgrpo.core.errors import UserError


def refused(call: Callable[..., Any], *arguments: Any, kind: type[Exception] = UserError) -> str:
    """The one line that the user sees instead of what was asked for."""
    with pytest.raises(kind) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)
