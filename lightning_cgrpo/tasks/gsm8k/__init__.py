"""GSM8K: arithmetic."""

from lightning_cgrpo.tasks.gsm8k.prompts import chat
from lightning_cgrpo.tasks.gsm8k.scoring import Profile, gold_answer, score_completion
from lightning_cgrpo.tasks.gsm8k.task import GSM8KTask

__all__ = ["GSM8KTask", "Profile", "chat", "gold_answer", "score_completion"]
