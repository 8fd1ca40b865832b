"""GSM8K: grade-school math questions."""

from __future__ import annotations

from typing import Any

from lightning_cgrpo.core.prompts.records import Record
from lightning_cgrpo.datamodules.prompt import PromptDataModule
from lightning_cgrpo.tasks.gsm8k import prompts


class GSM8KDataModule(PromptDataModule):
    """GSM8K's 7,473 training and 1,319 test questions, or questions in the same format.

    A record is ``{"question": …, "answer": "… #### 72"}``. Columns: ``prompt``, a chat, ``answer`` and
    ``completion``. Validation holds out training questions.

    Args: see `PromptDataModule`, and

        prompt_column: field with the question.
        system_prompt: demands the format of the answer, which `GSM8KTask` reads.
        val_prompts: training questions for validation; the paper holds out none, apparently.

    Raises:
        RecordError: (from `setup`) a record is malformed or has no gold answer.
    """

    def __init__(
        self,
        path: str = "openai/gsm8k",
        prompts_per_update: int = 32,
        prompt_column: str = "question",
        system_prompt: str = prompts.SYSTEM_PROMPT,
        subset: str | None = "main",
        val_prompts: int = 500,
        **options: Any,
    ) -> None:
        super().__init__(
            path, prompts_per_update, prompt_column, system_prompt, subset, val_prompts=val_prompts, **options
        )

    def columns(self, record: Record) -> dict[str, Any]:
        assert self.system_prompt is not None
        return prompts.columns(record, self.prompt_column, self.system_prompt, self.cluster)
