"""Short names of classes whose extra is not installed."""

import sys

import pytest

from lightning_cgrpo.cli.preparation import import_names
from lightning_cgrpo.errors import MissingExtraError


def test_a_missing_extra_stops_only_who_names_its_classes(monkeypatch):
    import lightning_cgrpo

    for name in [name for name in sys.modules if name.startswith("lightning_cgrpo.tasks.gymnasium")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    import_names()
    with pytest.raises(MissingExtraError, match=r"\[gymnasium\]"):
        lightning_cgrpo.Gymnasium  # noqa: B018
