"""Callbacks as user code."""

from __future__ import annotations

from lightning.pytorch import Callback

from lightning_cgrpo.user_code import UserCode

HOOKS = [name for name in vars(Callback) if name.startswith("on_")]


def guard(callback: Callback) -> None:
    """Call every hook of a callback as `UserCode`.

    A StopIteration in a hook ends Lightning's loop over batches without a word, and skips the hooks of later callbacks.
    """
    for hook in HOOKS:
        if getattr(type(callback), hook) is not getattr(Callback, hook) and hook not in vars(callback):
            setattr(callback, hook, UserCode(f"{type(callback).__name__}.{hook}")(getattr(callback, hook)))
