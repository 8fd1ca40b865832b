"""A reward model as a reward function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.core.errors import UserError, expect
from lightning_cgrpo.policies.pretrained import check_whole


class RewardModel:
    """Scores completions by an `AutoModelForSequenceClassification` with one output.

    The first call loads the model in each process, on its accelerator. Chats go through the chat template; text
    prompts are joined with their completions.

    Args:
        model: a folder, or a name on the Hugging Face hub.
        batch_size: completions per forward pass.
        dtype: of the weights, like ``bfloat16``; default: as stored.
    """

    def __init__(self, model: str, batch_size: int = 16, dtype: str = "auto") -> None:
        expect(batch_size >= 1, "batch_size", "at least 1", batch_size)
        self.model = model
        self.batch_size = batch_size
        self.dtype = dtype
        self._loaded: tuple[Any, Any] | None = None

    def __call__(self, prompts: list[Any], completions: list[Any]) -> list[float]:
        """Score texts after text prompts, or messages after chats.

        Raises:
            UserError: the model cannot be loaded or has several outputs, or a text has no tokens or too many.
        """
        network, tokenizer = self._load_model()
        rewards: list[float] = []
        for first in range(0, len(prompts), self.batch_size):
            rows = slice(first, first + self.batch_size)
            texts = []
            for prompt, completion in zip(prompts[rows], completions[rows], strict=True):
                texts.append(_text_tokens(tokenizer, prompt, completion))
            self._check_lengths(texts, _longest_text(network))
            batch = tokenizer.pad({"input_ids": texts}, padding_side="right", return_tensors="pt").to(network.device)
            rewards += _score_texts(network, batch).float().tolist()
        return rewards

    def _check_lengths(self, texts: list[list[int]], most: int | None) -> None:
        """Refuse texts without tokens, and texts of more tokens than the model has positions."""
        if not all(texts):
            raise UserError(f"Expected a tokenizer that gives tokens from '{self.model}', but got none of a text.")
        longest = max(map(len, texts))
        if most is not None and longest > most:
            raise UserError(
                f"Expected texts of at most {most:,} tokens, the positions of '{self.model}', but got {longest:,}, try "
                "a smaller max_new_tokens, or a reward model with more positions."
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def _load_model(self) -> tuple[Any, Any]:
        if self._loaded is None:
            from transformers import AutoModelForSequenceClassification, AutoTokenizer

            try:
                network, report = AutoModelForSequenceClassification.from_pretrained(
                    self.model,
                    dtype=self.dtype,
                    use_safetensors=True,
                    output_loading_info=True,
                    trust_remote_code=False,
                )
                tokenizer = AutoTokenizer.from_pretrained(self.model, trust_remote_code=False)
            except (OSError, ValueError) as error:  # ValueError for an impossible name
                raise UserError(
                    f"Expected a folder with a reward model, or its name on the hub, but got '{self.model}': {error}"
                ) from error
            if network.config.num_labels != 1:
                raise UserError(
                    f"Expected '{self.model}' to be a reward model, with one output, "
                    f"but got a classifier with {network.config.num_labels}."
                )
            check_whole(report, network, self.model)
            if tokenizer.pad_token is None:
                tokenizer.pad_token = tokenizer.eos_token
            accelerator = torch.accelerator.current_accelerator(check_available=True)
            self._loaded = network.eval().to(accelerator or "cpu"), tokenizer
        return self._loaded


def _longest_text(network: Any) -> int | None:
    """Tokens that the model has positions for; RoBERTa's begin behind the position of padding."""
    positions: int | None = getattr(network.config.get_text_config(), "max_position_embeddings", None)
    embeddings = getattr(network.base_model, "embeddings", None)
    padding = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
    if positions is None or padding is None:
        return positions
    return positions - padding - 1


def _text_tokens(tokenizer: Any, prompt: Any, completion: Any) -> list[int]:
    """Tokens of a chat, whose template writes the special ones itself, or of a text."""
    is_chat = not isinstance(prompt, str)
    text = prompt + completion
    if is_chat:
        text = tokenizer.apply_chat_template(text, tokenize=False)
    tokens: list[int] = tokenizer(text, add_special_tokens=not is_chat)["input_ids"]
    return tokens


@torch.no_grad()
def _score_texts(network: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """Scores ``[N]`` of texts, at the last attended token of models that score tokens.

    Transformers takes the last token that is not the padding token, which may be an end token of the text.
    """
    if not hasattr(network, "score"):  # encoders score their first token, or all tokens
        return network(**batch).logits[:, 0]
    states = network.base_model(**batch).last_hidden_state  # [N, tokens, width]
    places = torch.arange(states.shape[1], device=states.device)
    rows = torch.arange(len(states), device=states.device)
    last = (batch["attention_mask"] * places).argmax(-1)  # [N]
    return network.score(states[rows, last])[:, 0]
