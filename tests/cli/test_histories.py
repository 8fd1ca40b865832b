"""Histories of fits, kills, resumes, edits, looks, exports and copies, against a model in plain Python.

The manifests, data and ledgers are the real ones; no policy answers. tests/cli/test_register.py runs real commands.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from lightning_cgrpo.cli.certify.look import _shown_prompts
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.datamodules import PromptDataModule, SeedDataModule
from lightning_cgrpo.datamodules.base import GroupDataModule
from lightning_cgrpo.run.fingerprints import source_fingerprints
from lightning_cgrpo.run.lineage import read_lineage, write_lineage
from lightning_cgrpo.run.looks import Ledger, recorded_look
from lightning_cgrpo.run.manifest import Manifest, differences
from lightning_cgrpo.run.register import Register

CONFIDENCE = 0.95
TEST = 12
"""Test prompts; all runs of a history have the same."""
COUNTS = st.integers(1, TEST)
TRAINED = st.integers(0, 6)
"""The number of test prompts that train, too, in one version of the training file."""


Part = tuple[int, int, str]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as the model knows it, and the manifest that it holds.

    Args:
        lineage: what made it, oldest first: rate, version of the training file, and starting model of each part.
        used: test prompts that trained.
        known: whether no record of a start was lost.
        place: folder of the checkpoint.
    """

    lineage: tuple[Part, ...]
    used: frozenset[int]
    known: bool
    place: Path
    manifest: Manifest


def texts(numbers: Any) -> list[dict[str, str]]:
    return [{"prompt": f"number {number}"} for number in numbers]


class Histories(RuleBasedStateMachine):
    """Looks in the model are (lineage, shown prompts, number, policy and question, whether it ended)."""

    endless = False
    checkpoints = Bundle("checkpoints")

    def __init__(self) -> None:
        super().__init__()
        self.project = Path(tempfile.mkdtemp())
        self.looks: list[tuple[set[Part], set[int], int, Any, bool]] = []
        self.places = 0

    def teardown(self) -> None:
        shutil.rmtree(self.project)

    # ------------------------------------------------------------------ what is real

    def data(self, version: int) -> GroupDataModule:
        if self.endless:
            return SeedDataModule(test_prompts=TEST, train_prompts=8 + version, seed=0)
        rows = [*texts(range(version)), *texts([1000 + version])]  # the first `version` test prompts train
        return PromptDataModule(path=rows, test_path=texts(range(TEST)), prompts_per_update=1, seed=0)

    def made(self, rate: int, version: int, start: str) -> Manifest:
        source = self.data(version).source("train")
        fingerprints = source_fingerprints(source)
        prompts = {} if fingerprints is None else {"train": fingerprints}
        weights = {"weights": start} if start else {}
        return Manifest({"model.rate": rate}, {"train": len(source)}, prompts, start=weights, project=str(self.project))

    def place(self) -> Path:
        self.places += 1
        folder = self.project / f"run_{self.places}"
        folder.mkdir()
        return folder

    # ------------------------------------------------------------------ what happens

    @rule(target=checkpoints, rate=st.integers(0, 2), version=TRAINED)
    def fit(self, rate: int, version: int) -> Checkpoint:
        manifest = self.made(rate, version, "").starting((), torch.zeros(0, dtype=torch.int64), False)
        return Checkpoint(((rate, version, ""),), self.trained(version), True, self.place(), manifest)

    @rule(target=checkpoints, before=checkpoints, edit=st.none() | st.integers(0, 2), version=st.none() | TRAINED)
    def resume(self, before: Checkpoint, edit: int | None, version: int | None) -> Checkpoint:
        """Also what follows a kill: any earlier checkpoint may be resumed, by the same or another configuration."""
        old_rate, old_version, start = before.lineage[-1]
        rate, now = old_rate if edit is None else edit, old_version if version is None else version
        manifest = self.made(rate, now, start).continuing(before.manifest)
        lines = differences(before.manifest, manifest)
        assert [line for line in lines if "rate" in line] == (
            [] if rate == old_rate else [f"model.rate {old_rate} -> {rate}"]
        )
        assert any("training prompts" in line for line in lines) == (now != old_version)
        part = (rate, now, start)
        lineage = before.lineage if part in before.lineage else (*before.lineage, part)
        # The model's last part is the configuration that trains now.
        lineage = (*(other for other in lineage if other != part), part)
        return Checkpoint(lineage, before.used | self.trained(now), before.known, self.place(), manifest)

    @rule(target=checkpoints, before=checkpoints, rate=st.integers(0, 2), version=TRAINED, kept=st.booleans())
    def export_and_fit(self, before: Checkpoint, rate: int, version: int, kept: bool) -> Checkpoint:
        """The record beside the export may be lost; the register then still tells of its looks."""
        folder = self.place()
        weights = f"weights of {folder.name}"
        write_lineage(folder, before.manifest, weights)
        if not kept:
            (folder / "lineage.json").unlink()
        ancestry = read_lineage(folder, weights)
        assert ancestry.known == (kept and before.known) and not ancestry.fault
        manifest = self.made(rate, version, weights).starting(ancestry.lineage, ancestry.used, ancestry.known)
        lineage = (*before.lineage, (rate, version, weights))
        used = self.trained(version) | (before.used if kept else frozenset())
        return Checkpoint(lineage, used, kept and before.known, self.place(), manifest)

    @rule(target=checkpoints, checkpoint=checkpoints)
    def copy(self, checkpoint: Checkpoint) -> Checkpoint:
        return replace(checkpoint, place=self.place())

    @rule(checkpoint=checkpoints, count=COUNTS, ends=st.booleans())
    def certify(self, checkpoint: Checkpoint, count: int, ends: bool) -> None:
        version = checkpoint.lineage[-1][1]
        question = {"prompts": count, "confidence": CONFIDENCE, "data": {}}
        # Checkpoints with equal last parts stand for equal policies, whatever came before.
        about = {"checkpoint": "c", "update": 1, "policy": str(checkpoint.lineage), "question": question}
        register = Register.of(checkpoint.manifest.project, checkpoint.place)
        ledger = Ledger(register, checkpoint.place, checkpoint.manifest, about)

        # Related looks, by what made their policies.
        related = [look for look in self.looks if look[0] & {*checkpoint.lineage}]
        asked_before = any(look[3] == (about["policy"], count) and look[4] for look in related)
        assert (recorded_look(ledger.looks(), about["policy"], question) is not None) == asked_before
        seen = set().union(*(look[1] for look in related))
        left = {*range(TEST)} - seen - checkpoint.used
        data = self.data(version)
        with ledger.turn() as asked:
            assert asked.number == len(related) + 1
            if not self.endless and count > len(left):
                with pytest.raises(UserError, match="different prompts that neither trained nor validated"):
                    data.certification(count, asked.used)
                return
            chosen = data.certification(count, asked.used)
            ledger.begin(asked, _shown_prompts(data, chosen))
        shown = {*chosen.source.index}  # type: ignore[attr-defined]
        assert len(shown) == count and not shown & seen
        assert self.endless or shown <= left
        if ends:
            ledger.end({"decision": "undecided", "prompts": count})
        self.looks.append(({*checkpoint.lineage}, shown, asked.number, (about["policy"], count), ends))

    @precondition(lambda self: self.looks)
    @rule(data=st.data())
    def spent(self, data: st.DataObject) -> None:
        """All looks that share a part spend at most the error, each with a number of its own."""
        entries = Register(self.project).entries()
        began = [entry for entry in entries if entry["event"] == "began"]
        assert len(began) == len(self.looks) and not any("edited" in entry for entry in entries)
        names = data.draw(st.sampled_from(began))["lineage"][:1]
        family = [entry for entry in began if {*names} & {*entry["lineage"]}]
        assert sum(entry["error"] for entry in family) <= 1 - CONFIDENCE + 1e-12
        assert len({entry["look"] for entry in family}) == len(family)

    def trained(self, version: int) -> frozenset[int]:
        return frozenset() if self.endless else frozenset(range(version))


class EndlessHistories(Histories):
    endless = True


@pytest.mark.parametrize("count", [4, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("machine", [Histories, EndlessHistories])
def test_histories(machine: type[Histories], count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # the disk's own time
    run_state_machine_as_test(machine, settings=settings(max_examples=count, stateful_step_count=12))
