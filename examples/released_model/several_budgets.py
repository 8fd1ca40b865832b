"""Three requests for each sentence, each with a budget of tokens: prompts, and functions that score the answers.

    python several_budgets.py PATH/TO/gsm8k FOLDER

writes train.jsonl and test.jsonl, and both for each budget alone. PATH/TO/gsm8k is that of prepare.py.
"""

import json
import sys
from pathlib import Path

from prepare import INSTRUCTION, examples

REQUESTS = {
    5: "Write the number in this sentence with digits, and nothing else, in at most 5 tokens.",
    12: 'Extract the name as JSON with the key "name", in at most 12 tokens.',
    20: 'Extract the name and the number as JSON with the keys "name" and "number", in at most 20 tokens.',
}
"""The request of each budget."""


def prompts(questions):
    """Each sentence with each request, its budget and the wanted answer as JSON."""
    for row in examples(questions):
        sentence = row["prompt"][0]["content"].removeprefix(INSTRUCTION).strip()
        name, number = row["name"], row["number"]
        wanted = {5: number, 12: {"name": name}, 20: {"name": name, "number": number}}
        for budget, request in REQUESTS.items():
            prompt = [{"role": "user", "content": f"{request}\n\n{sentence}"}]
            yield {"prompt": prompt, "budget": budget, "wanted": json.dumps(wanted[budget])}


def form(completions, wanted, **columns):
    """An indicator: a whole number where one is wanted, and an object with the wanted keys where one is."""
    indicators = []
    for completion, text in zip(completions, wanted, strict=True):
        indicators.append(float(has_form(parsed(completion), json.loads(text))))
    return indicators


def right(completions, wanted, **columns):
    """The share of wanted values that are right."""
    shares = []
    for completion, text in zip(completions, wanted, strict=True):
        answer, values = parsed(completion), json.loads(text)
        if not has_form(answer, values):
            shares.append(0.0)
        elif isinstance(values, dict):
            shares.append(sum(answer[key] == value for key, value in values.items()) / len(values))
        else:
            shares.append(float(answer == values))
    return shares


def parsed(completion):
    """The value of an answer that is JSON and nothing else; None for any other answer."""
    try:
        return json.loads(completion[0]["content"])
    except ValueError:
        return None


def has_form(answer, wanted):
    if isinstance(wanted, dict):
        return isinstance(answer, dict) and answer.keys() == wanted.keys()
    return type(answer) is int


def write(rows, file):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows)} prompts in {file}")


def main(source, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        lines = (source / f"{split}.jsonl").read_text().splitlines()
        rows = list(prompts(json.loads(line)["question"] for line in lines))
        write(rows, folder / f"{split}.jsonl")
        for budget in REQUESTS:
            write([row for row in rows if row["budget"] == budget], folder / f"{split}_{budget}.jsonl")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
