"""Sources that split whole logs, because scenes of one log overlap."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Generic, TypeAlias, get_args

from driving_scenes.errors import InputError
from driving_scenes.scene import Scene
from driving_scenes.source import Key, Scenes, SceneSource, Split

Part: TypeAlias = tuple[float, float]
ALL: Part = (0.0, 1.0)


class LogSource(SceneSource, Generic[Key]):
    """Scenes that belong to logs.

    A hash of the names holds out logs, at least one per share above 0.

    Args:
        val_share: share of the logs for validation.
        test_share: share of the logs for tests.
        train_part: part of the logs not held out that is for training, see `in_part`.
    """

    def __init__(self, val_share: float = 0.1, test_share: float = 0.1, train_part: Part = ALL) -> None:
        if not (val_share >= 0 and test_share >= 0 and val_share + test_share <= 1):
            raise InputError(
                "Expected `val_share` and `test_share` to be at least 0 and together at most 1, but got "
                f"{val_share} and {test_share}."
            )
        self.val_share = val_share
        self.test_share = test_share
        self.train_part = checked_part(train_part)

    @abstractmethod
    def logs(self) -> Collection[str]:
        """Names of all logs."""

    @abstractmethod
    def keys(self, log: str) -> Sequence[Key]:
        """Keys of a log's scenes, in order."""

    @abstractmethod
    def scene(self, key: Key) -> Scene:
        """Build a scene."""

    def scenes(self, split: Split) -> Scenes[Key, Scene]:
        logs = deal(self.logs(), self.val_share, self.test_share)[split]
        if split == "train":
            logs = in_part(logs, self.train_part)
        keys: list[Key] = []
        for log in logs:
            keys += self.keys(log)
        return Scenes(keys, self.scene)


def deal(logs: Collection[str], val_share: float, test_share: float) -> dict[Split, list[str]]:
    """The sorted logs of each split, drawn by a hash of their names.

    Neither held-out split depends on the other's size: training is what both leave.

    Example:
        >>> deal(["a", "b", "c", "d"], val_share=0.25, test_share=0.25)
        {'train': ['b', 'c'], 'val': ['d'], 'test': ['a']}

    Raises:
        InputError: there are fewer logs than splits.
    """
    shuffled = sorted(set(logs), key=lambda log: hashlib.sha256(log.encode(errors="surrogatepass")).digest())
    # At least one log for each share above 0.
    val = max(1, round(val_share * len(shuffled))) if val_share else 0
    test = max(1, round(test_share * len(shuffled))) if test_share else 0
    # Without a share for training, validation and tests take all logs.
    trains = val_share + test_share < 1 - 1e-9
    if not trains and val and test:
        val = max(1, min(val, len(shuffled) - 1))
        test = max(1, len(shuffled) - val)
    if len(shuffled) < val + test + trains:
        raise InputError(
            f"Expected at least {val + test + trains} logs to split, but got {len(shuffled)}, "
            "try more scenes, or val_share and test_share 0 to train on all of them."
        )
    first_test = len(shuffled) - test
    parts = (shuffled[val:first_test], shuffled[:val], shuffled[first_test:])
    return {split: sorted(part) for split, part in zip(get_args(Split), parts, strict=True)}


def checked_part(part: Part) -> Part:
    """Raises:
    InputError: the part isn't within [0, 1].
    """
    start, end = part
    if not 0 <= start < end <= 1:
        raise InputError(f"Expected `train_part` to be two ascending numbers in [0, 1], but got {start} and {end}.")
    return start, end


def in_part(logs: Collection[str], part: Part) -> list[str]:
    """The logs whose hashed names lie in [start, end) of [0, 1), so that stages of training share no log.

    Example:
        >>> in_part("abcdefgh", (0.0, 0.5)), in_part("abcdefgh", (0.5, 1.0))
        (['a', 'b', 'c', 'd'], ['e', 'f', 'g', 'h'])
    """
    start, end = part
    inside = []
    for log in dict.fromkeys(logs):
        digest = hashlib.sha256(f"part {log}".encode(errors="surrogatepass")).digest()
        place = int.from_bytes(digest[:8]) / 2**64
        if start <= place < end:
            inside.append(log)
    return inside
