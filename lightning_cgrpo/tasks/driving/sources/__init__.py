"""Where scenes come from. A source lists the scenes of a split and builds each when it is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, Literal, TypeVar, overload

from lightning_cgrpo.tasks.driving.scene import Scene

Split = Literal["train", "val", "test"]
Key = TypeVar("Key")


class SceneSource(ABC):
    """Scenes by split."""

    @abstractmethod
    def scenes(self, split: Split) -> Sequence[Scene]:
        """The scenes of a split, each built when it is indexed.

        The same index is always the same scene. Splits share neither a scene nor a log.

        Raises:
            UserError: there is nothing to read, or too little to split.
        """


class Scenes(Sequence[Scene], Generic[Key]):
    """Scenes that are built when they are indexed.

    Args:
        keys: what names a scene.
        build: makes the scene of a key.
    """

    def __init__(self, keys: Sequence[Key], build: Callable[[Key], Scene]) -> None:
        self.keys, self.build = keys, build

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, index: int) -> Scene: ...
    @overload
    def __getitem__(self, index: slice) -> Scenes[Key]: ...
    def __getitem__(self, index: int | slice) -> Scene | Scenes[Key]:
        if isinstance(index, slice):
            return Scenes(self.keys[index], self.build)
        return self.build(self.keys[index])
