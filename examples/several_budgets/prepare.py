"""Write word problems whose last number is a budget of tokens: train.jsonl, test.jsonl, and both for each budget alone.

python prepare.py data
"""

import json
import sys
from pathlib import Path

import torch

from lightning_cgrpo.tasks.gsm8k.generated_prompts import WordProblems

BUDGETS = (14, 20, 40)
COUNTS = {"train": 4800, "test": 3000}


def rows(split, count):
    """Problems with the columns prompt, answer and budget; every budget has problems of its own."""
    problems = WordProblems(count, split, seed=0).groups(torch.arange(count)).columns
    for number, (prompt, answer) in enumerate(zip(problems["prompt"], problems["answer"], strict=True)):
        budget = BUDGETS[number % len(BUDGETS)]
        yield {"prompt": f"{prompt.rstrip()} {budget}\n", "answer": answer, "budget": budget}


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in COUNTS.items():
        every = list(rows(split, count))
        for name, some in [
            (split, every),
            *((f"{split}_{budget}", [row for row in every if row["budget"] == budget]) for budget in BUDGETS),
        ]:
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
            print(f"{len(some)} problems in {folder / name}.jsonl")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
