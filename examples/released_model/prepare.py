"""Make train.jsonl and test.jsonl: real sentences of GSM8K, each with a name and a number to extract.

    python prepare.py PATH/TO/gsm8k FOLDER

PATH/TO/gsm8k holds train.jsonl and test.jsonl of https://github.com/openai/grade-school-math (MIT license). The hub has
the same records as openai/gsm8k.
"""

import json
import re
import sys
from pathlib import Path

INSTRUCTION = 'Extract the name and the number as JSON with the keys "name" and "number".'
OTHERS = (
    "A After All Although Among An And As At Because Before But By Compared During Each Eighteen Every Federal Five "
    "Four For From Half Her His How If In It Last Making Movie My Nine On One Once Our She Since Six Sixteen Some "
    "Studying Ten The Their Then There These They This Three To Today Twenty Two We What When While With You Your"
)
"""Words that begin sentences, and are no names."""


def examples(questions):
    """Prompts with their fields, from first sentences that begin with a name and hold one number."""
    for question in questions:
        sentence = re.split(r"(?<=[.?!])\s", question.strip())[0]
        name = re.match(r"([A-Z][a-z]+) [a-z]", sentence)
        numbers = re.findall(r"\d[\d,.]*\d|\d", sentence)
        whole = len(numbers) == 1 and numbers[0].isdigit() and f"{numbers[0]}/" not in sentence
        if name and name[1] not in OTHERS.split() and whole and len(sentence) <= 120:
            prompt = [{"role": "user", "content": f"{INSTRUCTION}\n\n{sentence}"}]
            yield {"prompt": prompt, "name": name[1], "number": int(numbers[0])}


def main(source, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        lines = (source / f"{split}.jsonl").read_text().splitlines()
        rows = list(examples(json.loads(line)["question"] for line in lines))
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(f"{len(rows)} sentences in {folder / split}.jsonl")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
