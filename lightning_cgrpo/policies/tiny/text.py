"""A tiny language model with random weights, made without a network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lightning_cgrpo.core.randomness import random_weights

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson + '\\n' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('Expected the role system, user, assistant or tool, but got ' + message['role'] + '.') }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] }}
    {%- for call in message['tool_calls'] or [] %}
        {{- '<tool_call>{"name": "' + call['function']['name'] + '", "arguments": ' }}
        {{- call['function']['arguments'] | tojson + '}</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

TEXTS = [
    "Tom has 3 apples and buys 4 more apples. How many apples does he have now?",
    "Anna reads 12 pages every day. How many pages does she read in 5 days?",
    "A farmer has 20 eggs. He sells 8 eggs and gives 2 eggs to a friend. How many eggs are left?",
    "There are 6 boxes with 7 pencils each. How many pencils are there in total?",
    "Ben is 9 years old. His sister is twice as old as Ben. How old is she in 3 years?",
    "A book costs 15 dollars and a pen costs 2 dollars. How much do 2 books and 3 pens cost?",
    "Think step by step inside <think> and </think>, then give the final integer inside <answer> and </answer>.",
    "<think>He has 3 apples first. Then he buys 4 more, so 3 + 4 = <<3+4=7>>7.</think>\n<answer>7</answer>",
    "<think>She reads 12 pages a day, so 12 * 5 = <<12*5=60>>60 pages.</think>\n<answer>60</answer>",
    "<think>He sells 8 and gives away 2, so 20 - 8 - 2 = <<20-8-2=10>>10 eggs are left.</think>\n<answer>10</answer>",
    "system\nuser\nassistant\n#### 42",
]
"""Default texts to train a tokenizer on, from the task gsm8k."""


def make_tiny_model(
    directory: str | Path,
    texts: Sequence[str] | None = None,
    hidden_size: int = 64,
    layers: int = 2,
    heads: int = 4,
    vocabulary: int = 512,
    context_length: int = 2048,
    seed: int = 0,
) -> Path:
    """Write a Qwen2 with random weights and its tokenizer as a directory for transformers.

    The defaults give about 130 thousand parameters and 0.5 MB.

    Args:
        texts: train the tokenizer, by default `TEXTS`.
        hidden_size: a multiple of twice the heads; the feed-forward layers are three times as wide.
        vocabulary: tokens at most; at least 259, the bytes and three special tokens.
    """
    path = empty_directory(directory)
    if hidden_size % (2 * heads):
        raise ValueError(
            f"Expected hidden_size to be a multiple of twice the number of heads ({2 * heads}), but got {hidden_size}."
        )
    if vocabulary < 259:
        raise ValueError(f"Expected vocabulary to be at least 259, but got {vocabulary}.")

    tokenizer = train_tokenizer(TEXTS if texts is None else texts, vocabulary)
    model = build_model(tokenizer, hidden_size, layers, heads, 3 * hidden_size, context_length, seed)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def empty_directory(directory: str | Path) -> Path:
    """`directory` as a path; raises `FileExistsError` unless it is new or empty."""
    path = Path(directory)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(
            f"Expected a new or empty directory, but got '{path}', which has something in it, try another name."
        )
    return path


def build_model(
    tokenizer: Any, hidden_size: int, layers: int, heads: int, feed_forward: int, context_length: int, seed: int
) -> Any:
    """A Qwen2 with random weights, whose answers end at `TURN_END` or `END_OF_TEXT`.

    Args:
        hidden_size: a multiple of `heads`.
    """
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    end_of_text, turn_end = tokenizer.convert_tokens_to_ids([END_OF_TEXT, TURN_END])
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads if heads % 2 else heads // 2,
        max_position_embeddings=context_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=turn_end,
        pad_token_id=end_of_text,
    )
    with random_weights(seed):
        model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=[turn_end, end_of_text], pad_token_id=end_of_text)
    return model


def train_tokenizer(texts: Sequence[str], vocabulary: int, special: Sequence[str] = ()) -> Any:
    """Train a BPE that splits text as Qwen2 does, because AutoTokenizer ignores other rules."""
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    return chat_tokenizer(byte_pairs(texts, PRETOKENIZE_REGEX, vocabulary, special))


def byte_pairs(texts: Iterable[str], pieces: str, vocabulary: int, special: Sequence[str]) -> Any:
    """Train a byte-level BPE; no token crosses matches of the regular expression `pieces`."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END, *special],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def chat_tokenizer(tokenizer: Any) -> Any:
    """Wrap a `tokenizers.Tokenizer` for transformers, with `CHAT_TEMPLATE`."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=TURN_END, pad_token=END_OF_TEXT, chat_template=CHAT_TEMPLATE
    )
