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
    rollouts = outputs["rollouts"]
    prompt_groups = outputs["prompts"]
    mask = rollouts.mask  # [B, G, T]
    by_answer: dict[str, Any] = {"tokens": rollouts.lengths.tolist()}
    if "truncated" in rollouts.info:
        by_answer["truncated"] = rollouts.info["truncated"].tolist()
    advantages: Tensor | None = outputs.get("advantages")  # type: ignore[assignment] # of an update
    if advantages is not None:
        by_answer["advantage"] = _per_answer(advantages, mask).tolist()
    signals = {name: signal_values(signal) for name, signal in outputs["signals"].items()}
    extra: dict[str, Any] = {}
    for name, values in rollouts.info.items():
        if name.startswith(EXTRA):
            extra[name.removeprefix(EXTRA)] = values
    texts = rollouts.info.get("text")
    poses = rollouts.info.get("poses")
    actions = rollouts.actions
    if isinstance(policy, NetworkPolicy):
        actions = rollouts.info.get("action", policy.distribution.applied(actions))

    for row, index in enumerate(prompt_groups.index.tolist()[:prompts]):
        if texts:
            answers = texts[row]
        elif poses is not None:  # of a chain, whose actions are all its noisy states
            answers = poses[row].tolist()
        else:
            answers = [actions[row, column][mask[row, column]].tolist() for column in range(mask.shape[1])]
        prompt_fields = _prompt_fields(prompt_groups.columns, row)
        records = []
        for column in range(mask.shape[1]):
            record = {"index": index, **prompt_fields, "answer": answers[column]}
            record["signals"] = {name: values[row][column] for name, values in signals.items()}
            for name, values in by_answer.items():
                record[name] = values[row][column]
            if extra:
                record["extra"] = {name: values[row][column] for name, values in extra.items()}
            records.append(record)
        yield records


def _prompt_fields(columns: Mapping[str, Any], row: int) -> Record:
    """The field of a record that shows the prompt, if it has a text, a seed or a scene."""
    if "prompt" in columns:
        return {"prompt": prompt_text(columns["prompt"][row])}
    if "seed" in columns:
        return {"seed": int(columns["seed"][row])}
    if "scene" in columns:
        return {"scene": columns["scene"][row].name}
    return {}


def signal_values(signal: Signal) -> list[list[float | None]]:
    """B lists of G values, summed over steps; None if not applicable."""
    values = signal.value.double()
    if values.dim() > 2:
        values = values.sum(-1)  # [B, G]
    rows: list[list[float | None]] = values.tolist()
    if signal.applicable is None:
        return rows
    for row, column in (~signal.applicable.cpu()).nonzero().tolist():
        rows[row][column] = None
    return rows


def prompt_text(prompt: Any) -> str:
    """A prompt, or a chat's last message, with placeholders for images."""
    content = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    if isinstance(content, str):
        return content
    lines = []
    for part in content:
        placeholder = f"[{part.get('type', 'part')}]"
        lines.append(str(part.get("text", placeholder)))
    return "\n".join(lines)


def _per_answer(advantages: Tensor, mask: Tensor) -> Tensor:
    """``[B, G]`` of ``[B, G]`` or ``[B, G, T]``."""
    if advantages.dim() == 2:
        return advantages
    return (advantages * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def answer_file(path: Path, trainer: Trainer) -> Path:
    """The path, with the process's rank if there are several, in a folder that exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if trainer.world_size > 1:
        return path.with_name(f"{path.stem}.{trainer.global_rank}{path.suffix}")
    return path


def append_records(file: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Append a line of JSON per record; values that JSON doesn't know become text."""
    lines = "".join(json.dumps(record, ensure_ascii=False, default=str) + "\n" for record in records)
    # JSON's escapes replace halves of surrogate pairs, which UTF-8 can't encode.
    with file.open("a", encoding="utf-8", errors="backslashreplace") as opened:
        opened.write(lines)
