"""Sources whose scenes were cut from logs: the scenes of one log overlap, so that whole logs go to the splits."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Generic, get_args

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.tasks.driving.scene import Scene
from lightning_cgrpo.tasks.driving.sources import Key, Scenes, SceneSource, Split


class LogSource(SceneSource, Generic[Key]):
    """Scenes that belong to logs.

    A part of the logs, chosen by a hash of their names, is held out for validation and for tests, each at least one
    where its share isn't 0. With both shares 0 every scene is a training scene.

    Args:
        val_share: of the logs, for validation.
        test_share: of the logs, for tests.
    """

    def __init__(self, val_share: float = 0.1, test_share: float = 0.1) -> None:
        if not (val_share >= 0 and test_share >= 0 and val_share + test_share < 1):
            raise UserError(
                "Expected `val_share` and `test_share` to be at least 0 and together less than 1, but got "
                f"{val_share} and {test_share}."
            )
        self.val_share, self.test_share = val_share, test_share

    @abstractmethod
    def logs(self) -> Collection[str]:
        """The names of all logs."""

    @abstractmethod
    def keys(self, log: str) -> Sequence[Key]:
        """What names the scenes of a log, in order."""

    @abstractmethod
    def scene(self, key: Key) -> Scene:
        """Build a scene."""

    def scenes(self, split: Split) -> Scenes[Key]:
        logs = deal(self.logs(), self.val_share, self.test_share)[split]
        return Scenes([key for log in logs for key in self.keys(log)], self.scene)


def deal(logs: Collection[str], val_share: float, test_share: float) -> dict[Split, list[str]]:
    """The logs of each split, sorted; the same for the same logs, in whatever order they come.

    Example:
        >>> deal(["a", "b", "c", "d"], val_share=0.25, test_share=0.25)
        {'train': ['a', 'b'], 'val': ['d'], 'test': ['c']}

    Raises:
        UserError: there are fewer logs than splits that want one.
    """
    shuffled = sorted(set(logs), key=lambda log: hashlib.sha256(log.encode(errors="surrogatepass")).digest())
    held_out = [max(1, round(share * len(shuffled))) if share else 0 for share in (val_share, test_share)]
    if len(shuffled) <= sum(held_out):
        raise UserError(
            f"Expected at least {sum(held_out) + 1} logs to split, but got {len(shuffled)}, "
            "try more scenes, or val_share and test_share 0 to train on all of them."
        )
    val, test = held_out[0], sum(held_out)
    parts = (shuffled[test:], shuffled[:val], shuffled[val:test])
    return {split: sorted(part) for split, part in zip(get_args(Split), parts, strict=True)}
