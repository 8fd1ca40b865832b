"""Metrics that callbacks monitor: a name that the run never logs is an error after the first update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lightning_cgrpo.core.errors import UserError, did_you_mean
from lightning_cgrpo.objective.measurement import evaluation_tags
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.selection import MERIT

OURS = "lightning_cgrpo.", "lightning."
LATER = "faults/", "functions/", "inapplicable/"
"""Tags that first come with a fault, or when a task has something to say."""


def check_monitors(trainer: Trainer, module: LightningModule, objective: Objective) -> None:
    """Refuse monitored metrics that the run does not log, instead of Lightning after hours, or never.

    Code of the user's own may log any metric later, so beside it a name that resembles a metric is told alone.

    Raises:
        UserError: names the callback, the metric, and the most similar metric of the run.
    """
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    only_known_classes = all(type(part).__module__.startswith(OURS) for part in (module, *callbacks))
    # A constraint without an opportunity so far has no rate yet, so the tags of evaluations are added.
    tags = evaluation_tags(objective)
    validation_tags = [f"val/{tag}" for tag in (*tags, MERIT)]
    known = {*trainer.callback_metrics, *validation_tags, *tags}
    for callback, monitor in _monitored_metrics(callbacks):
        if monitor in known or monitor.removeprefix("val/").startswith(LATER):
            continue
        if only_known_classes:
            raise unknown_monitor(callback, monitor, known)
        if did_you_mean(monitor, sorted(known)):
            rank_zero_warn(
                f"{unknown_monitor(callback, monitor, known)} Unless code of your own logs it, the run fails."
            )


def unknown_monitor(callback: Callback, monitor: str, known: Iterable[str]) -> UserError:
    """The error of a callback that monitors none of the known metrics."""
    hint = did_you_mean(monitor, sorted(known)) or f" Try val/{MERIT}, or a tag of docs/tensorboard.md."
    return UserError(f"Expected {type(callback).__name__} to monitor a metric of this run, but got '{monitor}'.{hint}")


def _monitored_metrics(callbacks: list[Callback]) -> Iterator[tuple[Callback, str]]:
    for callback in callbacks:
        monitor = getattr(callback, "monitor", None)
        # `EarlyStopping(strict=False)` asks for a metric that may be missing.
        if isinstance(monitor, str) and getattr(callback, "strict", True):
            yield callback, monitor
