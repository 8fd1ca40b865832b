"""Answers as records: plain values by name, for the screen, the log and files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from torch import Tensor

from lightning_cgrpo.core.rollout import EXTRA, Signal
from lightning_cgrpo.modules.constrained_grpo import UpdateOutput
from lightning_cgrpo.modules.rollout_module import ScoredPrompts
from lightning_cgrpo.policies.network_policy import NetworkPolicy
from lightning_cgrpo.policies.policy import Policy

Record = dict[str, Any]


def answer_records(
    outputs: ScoredPrompts | UpdateOutput, policy: Policy, prompts: int | None = None
) -> Iterator[list[Record]]:
    """Yield the records of the G answers to each prompt, or to the first `prompts` prompts.

    A record has ``index`` (of the prompt in its data set), ``prompt`` (the text, or a chat's last message; only of text
    prompts), ``seed`` (only of worlds), ``answer`` (the text, or the actions as the environment gets them),
    ``signals`` by name (summed over steps, None if not applicable) and ``tokens`` (its steps). ``truncated``,
    ``advantage`` (of an update, a mean over steps) and ``extra`` (of `log_extra`, by column) follow where they exist.
    """
    rollouts, columns, mask = outputs["rollouts"], outputs["prompts"].columns, outputs["rollouts"].mask
    by_answer: dict[str, Any] = {"tokens": rollouts.lengths.tolist()}
    if "truncated" in rollouts.info:
        by_answer["truncated"] = rollouts.info["truncated"].tolist()
    advantages: Tensor | None = outputs.get("advantages")  # type: ignore[assignment] # of an update
    if advantages is not None:
        by_answer["advantage"] = _per_answer(advantages, mask).tolist()
    signals = {name: signal_values(signal) for name, signal in outputs["signals"].items()}
    extra = {n.removeprefix(EXTRA): values for n, values in rollouts.info.items() if n.startswith(EXTRA)}
    texts = rollouts.info.get("text")
    poses = rollouts.info.get("poses")
    actions = rollouts.actions
    if isinstance(policy, NetworkPolicy):
        actions = rollouts.info.get("action", policy.distribution.applied(actions))
    for row, index in enumerate(outputs["prompts"].index.tolist()[:prompts]):
        asked: Record = {"index": index}
        if "prompt" in columns:
            asked["prompt"] = prompt_text(columns["prompt"][row])
        elif "seed" in columns:
            asked["seed"] = int(columns["seed"][row])
        elif "scene" in columns:
            asked["scene"] = columns["scene"][row].name
        if texts:
            said = texts[row]
        elif poses is not None:  # of a chain, whose actions are all its noisy states
            said = poses[row].tolist()
        else:
            said = [actions[row, column][mask[row, column]].tolist() for column in range(mask.shape[1])]
        yield [
            asked
            | {"answer": said[column]}
            | {"signals": {name: values[row][column] for name, values in signals.items()}}
            | {name: values[row][column] for name, values in by_answer.items()}
            | ({"extra": {name: values[row][column] for name, values in extra.items()}} if extra else {})
            for column in range(mask.shape[1])
        ]


def signal_values(signal: Signal) -> list[list[float | None]]:
    """B lists of G values, summed over steps; None if not applicable."""
    values = signal.value.double()
    rows: list[list[float | None]] = (values if values.dim() == 2 else values.sum(-1)).tolist()
    if signal.applicable is None:
        return rows
    applicable = signal.applicable.tolist()
    return [
        [value if applies else None for value, applies in zip(*pair, strict=True)]
        for pair in zip(rows, applicable, strict=True)
    ]


def prompt_text(prompt: Any) -> str:
    """A prompt, or a chat's last message, with placeholders for images."""
    content = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", f"[{part.get('type', 'part')}]")) for part in content)


def _per_answer(advantages: Tensor, mask: Tensor) -> Tensor:
    """``[B, G]`` of ``[B, G]`` or ``[B, G, T]``."""
    if advantages.dim() == 2:
        return advantages
    return (advantages * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def answer_file(path: Path, trainer: Trainer) -> Path:
    """The path, with the process's rank if there are several, in a folder that exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f"{path.stem}.{trainer.global_rank}{path.suffix}") if trainer.world_size > 1 else path


def append_records(file: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Append a line of JSON per record; values that JSON doesn't know become text."""
    lines = "".join(json.dumps(record, ensure_ascii=False, default=str) + "\n" for record in records)
    # JSON's escapes replace halves of surrogate pairs, which UTF-8 can't encode.
    with file.open("a", encoding="utf-8", errors="backslashreplace") as opened:
        opened.write(lines)
