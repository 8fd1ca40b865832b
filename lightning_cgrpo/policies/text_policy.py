"""Policies over text: prompts to tokens, and answers to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_cgrpo.core.distributed import on_host
from lightning_cgrpo.core.errors import UserError, expect, first_line
from lightning_cgrpo.policies.policy import Policy
from lightning_cgrpo.policies.rendering import Messages, Tools, Variables, check_rendered, complete_message

NO_VARIABLES: Variables = MappingProxyType({})


class TextPolicy(Policy):
    """A model of transformers with its tokenizer; a subclass loads both and computes probabilities.

    Args:
        model: its name, for messages.
        max_prompt_tokens: longer prompts are an error; by default no limit.
        chat_template_kwargs: variables of the chat template, such as ``enable_thinking: false``.
    """

    reads_images = False

    def __init__(
        self,
        model: str,
        max_prompt_tokens: int | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        positive = max_prompt_tokens is None or max_prompt_tokens >= 1
        expect(positive, "max_prompt_tokens", "at least 1", max_prompt_tokens)
        self.name = model
        self.max_prompt_tokens = max_prompt_tokens
        self.chat_template_kwargs = dict(chat_template_kwargs or {})
        # Set by `load`. Any, because importing transformers takes seconds.
        self.model: Any = None
        self.tokenizer: Any = None
        self.pad_token = -1
        self.vocabulary_size = 0  # tokens that the model reads
        self._checked_kinds: set[Any] = set()  # kinds of prompts whose rendered text was checked
        # Packaged models were trained on texts, although their tokenizers have a chat template.
        self._warns_of = {"two begin tokens": True, "end token": True, "no template": not model.startswith("packaged:")}

    @property
    def device(self) -> torch.device:
        self._check_loaded()
        return next(self.model.parameters()).device

    def _check_loaded(self) -> None:
        if self.model is None:
            raise RuntimeError(f"Expected '{self.name}' to be loaded, but it is not, try `policy.load()` first.")

    def read_prompts(
        self,
        prompts: Sequence[str | Messages],
        index: Tensor | None = None,
        tools: Tools = (),
        variables: Sequence[Variables] | None = None,
    ) -> dict[str, Tensor]:
        """Tokenize B prompts, and pad them on the left; all tensors are on the CPU, where nobody waits for lengths.

        Args:
            index: ``[B]``, names prompts in errors.
            tools: schemas for the chat template.
            variables: of the chat template, of each prompt; its own tools are among them.

        Returns:
            ``prompt_ids`` ``[B, P]``, ``prompt_mask`` ``[B, P]`` (true for tokens), and a model's further inputs
            ``[B, ...]``. The inputs stay in this form up to a pass, because rollouts and minibatches take
            prompts by row.

        Raises:
            UserError: a prompt is empty, the tokenizer has no chat template, or the template drops a part, see
                `check_rendered`.
        """
        self._check_loaded()
        numbers = range(len(prompts)) if index is None else index.tolist()
        tokens = []
        for prompt, number, own in zip(prompts, numbers, variables or [{}] * len(prompts), strict=True):
            text = self._render_prompt(prompt, number, tools, own)
            tokens.append(self._prompt_tokens(prompt, text, number))
        return self.padded(tokens)

    def padded(self, tokens: Sequence[list[int]]) -> dict[str, Tensor]:
        """``prompt_ids`` and ``prompt_mask`` of B prompts."""
        width = max((len(row) for row in tokens), default=1)
        ids = torch.full((len(tokens), width), self.pad_token, device="cpu")
        mask = torch.zeros((len(tokens), width), dtype=torch.bool, device="cpu")
        for number, row in enumerate(tokens):
            start = width - len(row)
            ids[number, start:] = torch.tensor(row, device="cpu")
            mask[number, start:] = True
        return {"prompt_ids": ids, "prompt_mask": mask}

    def _render_prompt(
        self, prompt: str | Messages, number: int, tools: Tools = (), own: Variables = NO_VARIABLES
    ) -> str:
        """The text of a prompt, for messages by the chat template.

        Args:
            number: names the prompt in errors.
            own: the prompt's own variables of the chat template.
        """
        if isinstance(prompt, str) and not tools and not own:
            return prompt
        variables = {**self.chat_template_kwargs, **own}
        if tools:
            variables["tools"] = list(tools)
        if isinstance(prompt, str):
            what = f"reads {', '.join(own)} of chat_template_kwargs"
            if "tools" in variables:
                what = "presents the tools"
            raise UserError(
                f"Expected prompt {number} to be messages, because a chat template {what}, but got a text, "
                "try [{'role': 'user', 'content': TEXT}]."
            )
        if tools and own.get("tools"):
            raise UserError(
                f"Expected the tools of prompt {number} either in the column 'tools' or of the sampler, but got both, "
                "try without the column."
            )
        if self.tokenizer.chat_template is None:
            raise UserError(
                f"Expected prompt {number} to be a text, but got messages, and the tokenizer of '{self.name}' has no "
                "chat template, try a model tuned for chat, or plain text."
            )
        if not self.reads_images and any(isinstance(message["content"], list) for message in prompt):
            raise UserError(
                f"Expected prompt {number} to be of text alone for '{self.name}', but got a message of several parts "
                "(in its content, or from the column 'image' or 'images'), try a text as content, data without such a "
                "column, or VisionLanguagePolicy."
            )
        messages = [complete_message(message) for message in prompt]
        try:
            text: str = self.tokenizer.apply_chat_template(
                messages, **{"add_generation_prompt": True, **variables, "tokenize": False}
            )
        except Exception as error:  # of the template's own code, or of options that exclude each other
            raise UserError(
                f"Expected the chat template of '{self.name}' to write prompt {number}, but it raises: "
                f"{first_line(error)}, try messages or chat_template_kwargs that the template knows."
            ) from error
        # The template may write other parts for other roles or variables, so each combination is checked once.
        roles = frozenset(message["role"] for message in messages)
        kind = (roles, frozenset(variables))
        if kind not in self._checked_kinds:
            check_rendered(self.tokenizer, self.name, messages, text, variables)
            self._checked_kinds.add(kind)
        return text

    def _prompt_tokens(self, prompt: str | Messages, text: str, number: int) -> list[int]:
        # A chat template writes the special tokens itself.
        tokens: list[int] = self.tokenizer(text, add_special_tokens=isinstance(prompt, str)).input_ids
        if not tokens:
            raise UserError(f"Expected prompt {number} to have at least one token, but got an empty one.")
        self.check_tokens(tokens, f"prompt {number}")
        if isinstance(prompt, str):
            self._compare_with_template(tokens, number)
        return tokens

    def check_tokens(self, tokens: Sequence[int], what: str) -> None:
        """Refuse tokens of the tokenizer that the model can't read."""
        largest = max(tokens)
        if largest >= self.vocabulary_size:
            token = self.tokenizer.convert_ids_to_tokens(largest)
            raise UserError(
                f"Expected {what} to be of the {self.vocabulary_size} tokens of '{self.name}', but its tokenizer gives "
                f"{token} ({largest}), try saving the model after model.resize_token_embeddings(len(tokenizer))."
            )

    def _compare_with_template(self, tokens: list[int], number: int) -> None:
        """Warn, each once, of a text with two begin tokens or an end token, or without its model's chat template."""
        begin = self.tokenizer.bos_token_id
        end = self.tokenizer.eos_token_id
        if len(tokens) > 1 and tokens[-1] == end and self._warns_of["end token"]:
            self._warns_of["end token"] = False
            rank_zero_warn(
                f"Prompt {number} ends with the end token {self.tokenizer.eos_token}, so answers follow an end. Try "
                f"chat messages as prompts, or a tokenizer of '{self.name}' that adds no end token to texts."
            )
        if begin is not None and tokens[:2] == [begin, begin] and self._warns_of["two begin tokens"]:
            self._warns_of["two begin tokens"] = False
            rank_zero_warn(
                f"Prompt {number} begins with two begin tokens, because its text holds {self.tokenizer.bos_token} and "
                f"the tokenizer of '{self.name}' adds one. Try chat messages as prompts, or texts without it."
            )
        if self._warns_of["no template"] and self.tokenizer.chat_template is not None:
            self._warns_of["no template"] = False  # one text is enough
            special = {token for token, text in self.tokenizer.added_tokens_decoder.items() if text.special}
            if not special.intersection(tokens[1:]):
                rank_zero_warn(
                    f"Prompt {number} is a text without the chat template of '{self.name}'. If the model is tuned for "
                    "chat, try messages as prompts, such as [{'role': 'user', 'content': TEXT}]."
                )

    def decode(self, actions: Tensor, mask: Tensor) -> list[str]:
        """Texts of N answers without special tokens."""
        texts = []
        for row, is_token in zip(*on_host(actions, mask), strict=True):
            tokens = row[is_token].tolist()
            text = self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            texts.append(text)
        return texts
