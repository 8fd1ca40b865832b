"""Functions that score an extraction. released_model.yaml names them."""

import json


def parsed(completion):
    """The object of an answer that is JSON with both keys and nothing else; None for any other answer."""
    try:
        value = json.loads(completion[0]["content"])
    except ValueError:
        return None
    return value if isinstance(value, dict) and value.keys() == {"name", "number"} else None


def valid(completions, **columns):
    """An indicator. Without the keys, the policy would learn to leave out the harder field."""
    return [float(parsed(completion) is not None) for completion in completions]


def fields(completions, name, number, **columns):
    """The share of right fields: 0, 0.5 or 1."""
    scores = []
    for completion, right_name, right_number in zip(completions, name, number, strict=True):
        answer = parsed(completion) or {}
        scores.append((float(answer.get("name") == right_name) + float(answer.get("number") == right_number)) / 2)
    return scores
