"""A tiny language model with random weights, whose chat template writes calls of tools."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_cgrpo.policies.tiny.number_tokens import train_number_tokenizer
from lightning_cgrpo.policies.tiny.text import CHAT_TEMPLATE
from lightning_cgrpo.tasks.calculator.problems import Manners, demonstrate, draw_problem
from lightning_cgrpo.tasks.gsm8k.from_scratch import TOKENIZER_TEXTS
from lightning_cgrpo.tasks.gsm8k.from_scratch import FromScratch as WordProblemsFromScratch
from lightning_cgrpo.tasks.gsm8k.word_problems import problem_at

CALL, CALL_END = "<tool_call>", "</tool_call>"


class FromScratch(WordProblemsFromScratch):
    """A Qwen2 as for word problems, with tokens for calls.

    Its chat template names the tools without their schemas, because the tiny model learns the form of calls from
    demonstrations and short prompts train faster.
    """

    vocabulary = 700

    def trained_tokenizer(self) -> Any:
        draw = np.random.default_rng(0)
        texts = ["user\nassistant\ntool\nsystem\ncalculator\n"]
        for index in range(TOKENIZER_TEXTS):
            solved = problem_at(0, "train", index, draw_problem)
            texts.append(solved.question)
            for message in demonstrate(solved, Manners(), draw):
                texts.append(message["content"])
                for call in message.get("tool_calls", ()):
                    name = call["function"]["name"]
                    texts.append(f'{{"name": "{name}", "arguments": {{"expression": "1 + 1"}}}}')
        tokenizer = train_number_tokenizer(texts, self.vocabulary, special=[CALL, CALL_END])
        tokenizer.chat_template = CHAT_TEMPLATE.replace("tool | tojson", "tool.function.name")
        return tokenizer
