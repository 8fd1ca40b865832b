"""GSM8K's questions as chats."""

from __future__ import annotations

from typing import Any

from lightning_cgrpo.core.prompts.records import Record
from lightning_cgrpo.tasks.gsm8k.demonstrations import gold_completion
from lightning_cgrpo.tasks.gsm8k.scoring import GOLD_MARK, gold_answer, read_number

# The request of the recipe behind the paper's experiment, reworded.
SYSTEM_PROMPT = """\
You solve math problems. Work through the problem step by step first, then give the final answer, which is an integer.

Reply in exactly this format:
<think>your reasoning, step by step</think>
<answer>the final answer, an integer and nothing else</answer>"""


def chat(question: str, system_prompt: str = SYSTEM_PROMPT) -> list[dict[str, str]]:
    """Chat messages; the system prompt demands the answer's format."""
    return [{"role": "system", "content": system_prompt}, {"role": "user", "content": question}]


def columns(
    record: Record, prompt_column: str = "question", system_prompt: str = SYSTEM_PROMPT, cluster: str | None = None
) -> dict[str, Any]:
    """Columns ``prompt``, ``answer`` (gold), ``completion`` (the formatted solution), and the one called `cluster`.

    Raises:
        RecordError: a field is missing, or the answer does not end in ``#### <a number>``.
    """
    question, answer = record.text(prompt_column), record.text("answer")
    if GOLD_MARK not in answer:
        raise record.error(f"Expected field 'answer' to end in '{GOLD_MARK} <number>', but got ...{answer[-40:]!r}.")
    gold = gold_answer(answer)
    if read_number(gold) is None:
        raise record.error(f"Expected a number after the '{GOLD_MARK}' of field 'answer', but got {gold!r}.")
    clusters = {} if cluster is None else {cluster: record.values.get(cluster)}
    return {**clusters, "prompt": chat(question, system_prompt), "answer": gold, "completion": gold_completion(answer)}
