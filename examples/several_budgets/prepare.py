"""Make train.jsonl and test.jsonl: word problems of GSM8K to summarize in at most 6, 12 or 24 words.

    python prepare.py PATH/TO/gsm8k FOLDER

PATH/TO/gsm8k holds train.jsonl and test.jsonl of https://github.com/openai/grade-school-math (MIT license). The hub has
the same records as openai/gsm8k.
"""

import json
import sys
from pathlib import Path

BUDGETS = (6, 12, 24)


def write(rows, file):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows)} prompts in {file}")


def main(source, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        lines = (source / f"{split}.jsonl").read_text().splitlines()
        problems = [json.loads(line)["question"].strip() for line in lines]
        rows = []
        for problem in problems:
            if 24 < len(problem.split()) <= 40:
                for budget in BUDGETS:
                    request = f"Summarize this problem in at most {budget} words.\n\n{problem}"
                    prompt = [{"role": "user", "content": request}]
                    rows.append({"prompt": prompt, "problem": problem, "budget": budget})
        write(rows, folder / f"{split}.jsonl")
        for budget in BUDGETS:
            alone = [row for row in rows if row["budget"] == budget]
            write(alone, folder / f"{split}_{budget}.jsonl")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
