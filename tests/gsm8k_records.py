"""Records in GSM8K's format."""

import json


def write_records(folder, train=12, test=5):
    folder.mkdir()
    for split, size in (("train", train), ("test", test)):
        rows = [
            {"question": f"{split}: Tom has {n} apples, and buys 4.", "answer": f"{n} + 4 = {n + 4}\n#### {n + 4}"}
            for n in range(size)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
