"""Extras that are not installed: short names of their classes, and how to install them."""

import sys
from importlib import metadata

import pytest

from lightning_cgrpo import errors
from lightning_cgrpo.cli.preparation import import_names
from lightning_cgrpo.errors import MissingExtraError, installing


def test_a_missing_extra_stops_only_who_names_its_classes(monkeypatch):
    import lightning_cgrpo

    for name in [name for name in sys.modules if name.startswith("lightning_cgrpo.tasks.gymnasium")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    import_names()
    with pytest.raises(MissingExtraError, match=r"\[gymnasium\]"):
        lightning_cgrpo.Gymnasium  # noqa: B018


def test_a_wheel_s_user_is_told_what_its_extra_requires(monkeypatch, tmp_path):
    """A wheel has no checkout for `pip install -e`, and no index has a release."""
    assert installing("data") == 'pip install -e ".[data]"'
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "lightning_cgrpo/errors.py"))
    requires = ["torch>=2.13", 'datasets>=5.2; extra == "data"', 'pyarrow>=26.0; extra == "data"']
    monkeypatch.setattr(metadata, "requires", lambda name: requires)
    assert installing("data") == 'pip install "datasets>=5.2" "pyarrow>=26.0"'
