"""Functions that score answers. your_problem.yaml names them, and finds this file because it lies beside the YAML file.

A function takes `completions`, and by name the columns of prompts.jsonl that it needs. Each is a list with one element per
answer. The function returns one number per answer, or None for an answer to which it does not apply.

A completion is a text here. To a chat, a completion is `[{"role": "assistant", "content": text}]`.
"""

import re


def brief(completions, **columns):
    """The reward: any number, larger is better. Here -1 per 100 characters."""
    return [-len(text) / 100 for text in completions]


def correct(completions, answer, **columns):
    """An indicator: 1 if the behavior occurs, otherwise 0. Its mean over answers is a rate."""
    found = [re.search(r"<answer>(-?\d+)</answer>", text) for text in completions]
    return [float(match is not None and int(match[1]) == gold) for match, gold in zip(found, answer, strict=True)]


def explained(completions, **columns):
    """An indicator: the answer shows at least one calculation, such as 3+4=7."""
    return [float(re.search(r"\d+[-+*]\d+=\d+", text) is not None) for text in completions]
