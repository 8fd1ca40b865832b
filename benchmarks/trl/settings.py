"""Sizes, random weights, random prompts and reward functions for both sides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

VOCABULARY, HIDDEN, FEED_FORWARD, LAYERS, HEADS, KEY_VALUE_HEADS = 2048, 256, 1024, 4, 4, 2
"""4.46 million parameters."""
PROMPTS = 4
WARM_UP_TOKENS = 8
"""Prompt tokens of the first update, which isn't measured."""
LEARNING_RATE, MAX_GRAD_NORM = 1e-5, 1.0


@dataclass(frozen=True)
class Setting:
    """A measurement and its goals.

    Args:
        prompt: tokens of every prompt.
        completion: tokens of every answer; none ends sooner.
        group: answers per prompt.
        kl_weight: of the KL to a reference, beta; 0 keeps no reference.
        epochs: passes over each rollout, TRL's iterations.
        times_faster: goal for an update's CPU time, against TRL projecting answers only.
        times_smaller: same goal for memory; None for none.
    """

    prompt: int
    completion: int
    group: int
    kl_weight: float
    epochs: int
    times_faster: float = 1.0
    times_smaller: float | None = None

    @property
    def name(self) -> str:
        return f"{self.prompt},{self.completion},{self.group}"

    @property
    def token_ratio(self) -> float:
        """Padded over shared tokens."""
        return self.group * (self.prompt + self.completion) / (self.prompt + self.group * self.completion)


SETTINGS = (
    Setting(64, 64, 8, 0.02, 2, times_faster=2),
    Setting(512, 64, 16, 0.02, 2, times_faster=8, times_smaller=3.5),
    Setting(1024, 96, 16, 0.02, 2, times_faster=8.5, times_smaller=4),
    Setting(256, 256, 8, 0.02, 2, times_faster=2),
    Setting(512, 64, 16, 0.0, 1),
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Make every token a word, so texts map back to the same tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word(token): token for token in range(VOCABULARY)}, unk_token=word(2)))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=word(0), pad_token=word(1))


def word(token: int) -> str:
    """Fixed width, because special tokens are also found inside words."""
    return f"w{token:04}"


def save_model(folder: Path) -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=FEED_FORWARD,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_VALUE_HEADS,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


def make_prompts(setting: Setting, updates: int) -> list[dict[str, Any]]:
    """Short warm-up prompts, then the measured updates' prompts."""
    import torch

    draw = torch.Generator().manual_seed(1)
    lengths = [min(WARM_UP_TOKENS, setting.prompt)] * PROMPTS + [setting.prompt] * PROMPTS * updates
    rows = [torch.randint(2, VOCABULARY, (length,), generator=draw).tolist() for length in lengths]
    return [{"prompt": " ".join(map(word, row))} for row in rows]


# Four reward functions, cheap ones, since both sides call the same.


def varied(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    return [len(set(row)) / len(row) for row in completion_ids]


def even_end(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    return [float(row[-1] % 2 == 0) for row in completion_ids]


def low_start(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    return [float(row[0] < VOCABULARY // 2) for row in completion_ids]


def mostly_odd(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    return [float(sum(token % 2 for token in row) > len(row) / 2) for row in completion_ids]


REWARDS = (varied, even_end, low_start, mostly_odd)
