"""Paths as users write them."""

from pathlib import Path

from lightning_cgrpo.core.paths import expanded


def test_paths_are_expanded_as_in_a_shell(monkeypatch):
    monkeypatch.setenv("DATA", "/data")
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.delenv("NOWHERE", raising=False)
    assert expanded("$DATA/a.jsonl") == expanded("${DATA}/a.jsonl") == Path("/data/a.jsonl")
    assert expanded("~/a.jsonl") == expanded(Path("~/a.jsonl")) == Path("/home/ann/a.jsonl")
    assert expanded("$NOWHERE/a$") == Path("$NOWHERE/a$")
