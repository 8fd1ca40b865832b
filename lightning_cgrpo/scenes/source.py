"""Where scenes come from. A source lists the scenes of a split and builds each when it is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, Literal, Self, TypeVar, overload

from lightning_cgrpo.scenes.scene import Scene

Split = Literal["train", "val", "test"]
Key = TypeVar("Key")
Item = TypeVar("Item")


class SceneSource(ABC):
    """Scenes by split."""

    endless = False
    """Whether nobody has said how many there are, of scenes that could always be more: not to be taken all."""

    @abstractmethod
    def scenes(self, split: Split) -> Sequence[Scene]:
        """The scenes of a split, each built when it is indexed.

        The same index is always the same scene. Splits share neither a scene nor a log.

        Raises:
            UserError: there is nothing to read, or too little to split.
        """

    def follow_ups(self, split: Split) -> Sequence[Sequence[Scene]]:
        """Of each scene of a split those of the second stage: they begin where its ego could be 4 s later.

        By default there are none.
        """
        return [()] * len(self.scenes(split))


class Lazy(Sequence[Item], Generic[Key, Item]):
    """What is built when it is indexed.

    Args:
        keys: what names an item.
        build: makes the item of a key.
    """

    def __init__(self, keys: Sequence[Key], build: Callable[[Key], Item]) -> None:
        self.keys, self.build = keys, build

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Item | Self:
        if isinstance(index, slice):
            return type(self)(self.keys[index], self.build)
        return self.build(self.keys[index])


class Scenes(Lazy[Key, Scene]):
    """Scenes that are built when they are indexed."""
