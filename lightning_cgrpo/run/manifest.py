"""The manifest: one value with all parts of a run, kept in every checkpoint."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Self

import torch
from torch import Tensor

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.prompts.fingerprints import BITS
from lightning_cgrpo.settings.effects import Effect, effect_of
from lightning_cgrpo.settings.settings import UNSET, Settings, differing

KEY = "manifest"
"""The manifest's key in a checkpoint."""
ELSEWHERE = (Effect.LENGTH, Effect.PLACE)
"""Effects with which a longer run, or the same run on other machines, is the same run."""
PRECISION = "trainer.precision"
SHOWN = 60
"""Characters of a value in a line."""
NAMES = {"train": "training prompts", "val": "validation prompts"}
USES = {"train": "that trained", "val": "that validated"}
PART_WORDS = {
    "code": "code of",
    "start": "the starting model's",
    "files": "the file of",
    "variables": "the environment's",
    "versions": "version of",
}
"""Words of a line for the parts of a manifest with fingerprints or versions by name."""


@dataclass(frozen=True)
class Manifest:
    """The parts of which a run was made.

    Args:
        settings: every setting with its default, by dotted key; None for a run from Python.
        sizes: number of prompts by split.
        prompts: fingerprints ``[N, 2]`` of the prompts by split, see `record_fingerprints`; only splits whose prompts
            are in memory.
        seen: fingerprints ``[M]`` of prompts that trained or validated before the run was resumed with other prompts.
        code: fingerprints of the user's own modules.
        start: fingerprints of the starting model's weights and files.
        rendered: fingerprint of a chat as the policy's template writes it, which may depend on the day.
        files: fingerprints of other files and models that settings name, by setting.
        versions: of the libraries that compute, and of those that the user's code imports.
        variables: fingerprints of the variables of the environment that the user's code reads.
        machine: number of processes, kind of device and precision, which rounding depends on.
        lineage: the runs that this run continues or starts from, oldest first, and itself; equal runs have one name.
        start_known: whether all prompts that trained the starting model are among those of the manifest.
        project: folder of the register of looks.
        lacks: parts that the version which wrote the manifest did not know; not written.
    """

    settings: Settings | None
    sizes: dict[str, int] = field(default_factory=dict)
    prompts: dict[str, Tensor] = field(default_factory=dict)
    seen: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    code: dict[str, str] = field(default_factory=dict)
    start: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    rendered: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=dict)
    lineage: tuple[str, ...] = ()
    start_known: bool = False
    project: str = ""
    lacks: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """16 hexadecimal digits of the whole manifest, but for its place."""
        content = self.readable() | {"project": ""}
        return blake2b(json.dumps(content, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()

    @property
    def name(self) -> str:
        """16 hexadecimal digits, equal for runs that differ in their length, place and versions alone."""
        settings = self.settings or {}
        settings = {key: value for key, value in settings.items() if effect_of(key) not in ELSEWHERE}
        content = json.dumps([settings, self.sizes, self.code, self.start, self.files], sort_keys=True, default=str)
        digest = blake2b(content.encode(), digest_size=8)
        for split in sorted(self.prompts):
            digest.update(self.prompts[split].numpy().data)
        return digest.hexdigest()

    @property
    def used(self) -> Tensor:
        """Fingerprints ``[M]`` of the prompts that trained or validated, earlier parts of the run included."""
        prompts = [fingerprints[:, 1] for fingerprints in self.prompts.values()]
        return torch.cat([self.seen, *prompts]).unique()

    @property
    def used_known(self) -> bool:
        """False if a version with other fingerprints wrote some, which equal no prompt's."""
        return bool(((self.used >= 0) & (self.used < 2**BITS)).all())

    @property
    def used_as(self) -> dict[str, Tensor]:
        """The fingerprints of `used`, by words for the use: ``that trained``, ``that validated``, or either before."""
        now = {USES[split]: fingerprints[:, 1] for split, fingerprints in self.prompts.items() if split in USES}
        return now | {"that trained or validated before": self.seen}

    def starting(self, lineage: Iterable[str], used: Tensor, known: bool) -> Manifest:
        """This manifest, of a new run whose starting model was made by the runs `lineage` with the prompts `used`."""
        name = self.name
        earlier_runs = [run for run in lineage if run != name]
        seen = used[~torch.isin(used, self.used)]
        # Weights that were drawn from the seed have seen no prompt.
        start_known = known or not self.start
        return replace(self, lineage=(*earlier_runs, name), seen=seen, start_known=start_known)

    def continuing(self, before: Manifest) -> Manifest:
        """This manifest, of a run that resumes from a checkpoint of the run `before`."""
        name = self.name
        lineage = before.lineage if name in before.lineage else (*before.lineage, name)
        earlier = before.used
        seen = earlier[~torch.isin(earlier, self.used)]
        project = before.project or self.project
        return replace(self, lineage=lineage, seen=seen, start_known=before.start_known, project=project)

    def state(self) -> dict[str, Any]:
        """Plain containers and tensors, for a checkpoint."""
        parts = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "lacks"}
        return parts | {"lineage": list(self.lineage)}

    @classmethod
    def of(cls, checkpoint: Mapping[str, Any]) -> Self | None:
        """The manifest in a checkpoint's content; None if it is of another origin.

        Raises:
            UserError: a part has another type than a run writes.
        """
        state = checkpoint.get(KEY)
        if not isinstance(state, Mapping) or not {"settings", "lineage"} <= state.keys():
            return None
        parts = [name for name in cls.__dataclass_fields__ if name != "lacks"]
        known = {name: state[name] for name in parts if name in state}
        for name, value in known.items():
            if not _is_written(name, value):
                raise UserError(
                    f"Expected the checkpoint's manifest to be one that a run wrote, but its {name} is "
                    f"{shown(value)}, try another checkpoint."
                )
        lacks = tuple(name for name in parts if name not in state)
        return cls(**{**known, "lineage": tuple(state["lineage"]), "lacks": lacks})

    def readable(self) -> dict[str, Any]:
        """The manifest as JSON, with a digest of each split's prompts."""
        digests = {split: prompts_digest(fingerprints) for split, fingerprints in self.prompts.items()}
        state = self.state() | {"prompts": digests}
        del state["seen"]
        return state


def _is_written(name: str, value: Any) -> bool:
    """True if a part of a manifest has the type that a run writes."""
    if name == "settings":
        return value is None or (isinstance(value, dict) and all(isinstance(key, str) for key in value))
    if name == "seen":
        return _are_fingerprints(value, 1)
    if name == "lineage":
        return isinstance(value, (list, tuple)) and all(isinstance(run, str) for run in value)
    if name == "start_known":
        return isinstance(value, bool)
    if name == "project":
        return isinstance(value, str)
    # All other parts are values by name.
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        return False
    if name == "prompts":
        return all(_are_fingerprints(part, 2) and part.shape[1] == 2 for part in value.values())
    kind = int if name == "sizes" else str
    return all(isinstance(part, kind) for part in value.values())


def _are_fingerprints(value: Any, dimensions: int) -> bool:
    return isinstance(value, Tensor) and value.dim() == dimensions and value.dtype == torch.int64


def prompts_digest(fingerprints: Tensor) -> str:
    """16 hexadecimal digits, equal for the same prompts in the same order."""
    return blake2b(fingerprints.numpy().data, digest_size=8).hexdigest()


def differences(before: Manifest, now: Manifest) -> list[str]:
    """A line for each difference between the parts of a resumed run and the parts of its first start."""
    lines = []
    if before.settings is not None and now.settings is not None:
        for key, (old, new) in differing(before.settings, now.settings).items():
            if key == PRECISION and before.machine:
                continue  # reported below, whether a setting or the kind of device chose it
            lines.append(f"{key} {shown(old)} -> {shown(new)}")
    for split in dict.fromkeys([*before.sizes, *now.sizes]):
        lines += _prompt_differences(before, now, split)
    trained = _count_trained_validation(before, now)
    if trained:
        lines.append(f"{trained:,} of {now.sizes['val']:,} validation prompts trained before")
    for part, words in PART_WORDS.items():
        if part in before.lacks:
            continue
        for name, (old, new) in differing(getattr(before, part), getattr(now, part)).items():
            change = f"{old} -> {new}" if part == "versions" else _describe_change(old, new)
            lines.append(f"{words} {name} {change}")
    for name, (old, new) in differing(before.rendered, now.rendered).items():
        if UNSET not in (old, new):  # a policy without chats reads no chat
            lines.append(f"{name} reads otherwise: its chat template writes the date, or differs")
    for name, (old, new) in differing(before.machine, now.machine).items():
        if UNSET not in (old, new):  # an earlier version that recorded less about its machine
            lines.append(f"{name} {old} -> {new}")
    return lines


def _describe_change(old: str, new: str) -> str:
    """The change of a fingerprint in a word, because its value means nothing to a reader."""
    if old == UNSET:
        return "added"
    return "gone" if new == UNSET else "differs"


def _prompt_differences(before: Manifest, now: Manifest, split: str) -> Iterator[str]:
    """At most one line about the prompts of a split."""
    name = NAMES.get(split, f"{split} prompts")
    old_size = before.sizes.get(split, 0)
    new_size = now.sizes.get(split, 0)
    if split not in before.prompts or split not in now.prompts:
        if old_size != new_size:
            yield f"{old_size:,} {name} -> {new_size:,}"
        return
    old = before.prompts[split][:, 0]  # [prompts]
    new = now.prompts[split][:, 0]
    if torch.equal(old, new):
        return
    # Counters, because a prompt may occur several times.
    added = sum((Counter(new.tolist()) - Counter(old.tolist())).values())
    if old_size != new_size:
        yield f"{old_size:,} {name} -> {new_size:,}, of which {added:,} are new"
    elif added:
        yield f"{added:,} of {new_size:,} {name} differ"
    else:
        yield f"the {name} have another order"


def _count_trained_validation(before: Manifest, now: Manifest) -> int:
    """Number of validation prompts that trained, and did not validate, before a resume."""
    if "train" not in before.prompts or "val" not in now.prompts:
        return 0
    validation = now.prompts["val"][:, 1]
    trained = torch.isin(validation, before.prompts["train"][:, 1])
    if "val" in before.prompts:
        trained &= ~torch.isin(validation, before.prompts["val"][:, 1])
    return int(trained.sum())


def shown(value: Any) -> str:
    """A setting's value in a line, as YAML writes it."""
    text = str(value)
    if value is None:
        text = "null"
    elif isinstance(value, bool):
        text = text.lower()
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
