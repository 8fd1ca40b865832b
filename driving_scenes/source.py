"""Sources of scenes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Self, TypeVar, overload

from driving_scenes.errors import InputError
from driving_scenes.inventory import Pieces
from driving_scenes.scene import Scene

Split = Literal["train", "val", "test"]
Key = TypeVar("Key")
Item = TypeVar("Item")


class SceneSource(ABC):
    """Scenes by split.

    Attributes:
        endless: unbounded; the caller must pass a count.
    """

    endless = False

    @abstractmethod
    def scenes(self, split: Split) -> Sequence[Scene]:
        """Splits share neither scenes nor logs; scenes are built when they are indexed.

        Raises:
            InputError: there is nothing to read, or too little to split.
        """

    def inventory(self, split: Split) -> list[Pieces]:
        """Pieces that the split's scenes are read from, for the command `data`; none for made-up scenes."""
        return []

    def follow_ups(self, split: Split) -> Sequence[Sequence[Scene]]:
        """Second-stage scenes of each scene, 4 s later."""
        return [()] * len(self.scenes(split))

    def next_frames(self, split: Split) -> Sequence[Scene | None]:
        """The frame 0.5 s after each scene, which names the scene as `previous`; None if this frame is unknown.

        Raises:
            InputError: the source has no later frames.
        """
        raise InputError(
            f"Expected scenes whose next frame is known, but got {type(self).__name__}, try GeneratedScenes, "
            "NavsimDevkit, or data.frame_pairs=false."
        )


class WithoutEnd(Sequence[int]):
    """The indices of scenes that are drawn one by one. Splits are spaced over the length, and more can be drawn."""

    def __len__(self) -> int:
        return 1_000_000

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> range: ...
    def __getitem__(self, index: int | slice) -> int | range:
        if isinstance(index, slice):
            return range(len(self))[index]
        return index


@dataclass(frozen=True, eq=False)
class Scenes(Sequence[Item], Generic[Key, Item]):
    """Scenes, or groups of scenes, built when they are indexed."""

    keys: Sequence[Key]
    build: Callable[[Key], Item]

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
