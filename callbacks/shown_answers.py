"""Prompts, answers and signals as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.modules.constrained_grpo import UpdateOutput
from lightning_cgrpo.rollout import EXTRA, Signal


@dataclass(frozen=True)
class Answer:
    """A text answer.

    Args:
        prompt: the text, or a chat's last message.
        signals: by name, summed over steps; None if not applicable.
        advantage: mean over steps.
        truncated: reached the length limit; None if unknown.
        extra: values of `log_extra` by column, as text.
    """

    prompt: str
    text: str
    signals: dict[str, float | None]
    advantage: float
    tokens: int
    truncated: bool | None
    extra: dict[str, str] = field(default_factory=dict)


def answers_of(outputs: UpdateOutput, prompts: int | None = None) -> Iterator[list[Answer]]:
    """Yield the G answers to each prompt, or to the first `prompts` prompts.

    Raises:
        UserError: prompts or answers aren't texts.
    """
    rollouts = outputs["rollouts"]
    columns = outputs["prompts"].columns
    if "text" not in rollouts.info or "prompt" not in columns:
        raise UserError("Expected answers in text for SampleAnswers, but got none; use Pictures, or remove it.")
    texts = rollouts.info["text"][:prompts]
    signals = {name: signal_values(signal) for name, signal in outputs["signals"].items()}
    advantages = _per_answer(outputs["advantages"], rollouts.mask).tolist()
    lengths = rollouts.lengths.tolist()
    truncated = rollouts.info["truncated"].tolist() if "truncated" in rollouts.info else None
    extra = {n.removeprefix(EXTRA): values for n, values in rollouts.info.items() if n.startswith(EXTRA)}
    for row, group in enumerate(texts):
        prompt = prompt_text(columns["prompt"][row])
        yield [
            Answer(
                prompt,
                text,
                {name: values[row][column] for name, values in signals.items()},
                advantages[row][column],
                lengths[row][column],
                None if truncated is None else truncated[row][column],
                {name: str(values[row][column]) for name, values in extra.items()},
            )
            for column, text in enumerate(group)
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
