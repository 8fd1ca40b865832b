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

    Args:
        val_prompts: training questions for validation; the paper holds out none, apparently.
        options: of `PromptDataModule`.

    Raises:
        RecordError: (from `setup`) a record is malformed or has no gold answer.
    """

    def __init__(
        self, path: str = "openai/gsm8k", prompts_per_update: int = 32, val_prompts: int = 500, **options: Any
    ) -> None:
        super().__init__(path, prompts_per_update, subset="main", val_prompts=val_prompts, **options)

    def columns(self, record: Record) -> dict[str, Any]:
        return prompts.columns(record)
