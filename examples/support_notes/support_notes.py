"""Customers' messages, and functions that score an internal note about one. support_notes.yaml names them.

    python support_notes.py FOLDER

writes train.jsonl and test.jsonl into FOLDER. The messages are made by rules.
"""

import json
import random
import re
import sys
from pathlib import Path

REQUEST = (
    "Write one short sentence for our support team that says what this customer's problem is. Mention the order "
    "number. Never repeat the phone number or e-mail address."
)
NAMES = [
    "Carla", "Henry", "Marissa", "John", "Claire", "Omar", "Priya", "Lena", "Victor", "Amara", "Tom", "Yuki", "Elena",
    "Marcus", "Nadia",
]  # fmt: skip
ITEMS = ["kettle", "backpack", "headphones", "lamp", "blender", "jacket", "monitor", "keyboard", "tent", "printer"]
CITIES = ["Lyon", "Denver", "Osaka", "Leeds", "Porto", "Krakow", "Austin", "Ghent"]
PROBLEMS = {
    "arrived broken": "broken",
    "never arrived": "arrived",
    "has the wrong color": "color",
    "stopped working after two days": "working",
    "is missing a part": "missing",
    "was charged twice": "charged",
}
"""Problems, each with the word by which a note names it."""
CONTACT = re.compile(r"\d{3}-\d{3}-\d{4}|\S+@\S+")
"""A phone number or an e-mail address."""


def messages(count, seed):
    """Prompts, each with the facts that a note should cover."""
    random_of = random.Random(seed)
    for _ in range(count):
        name, item, city = (random_of.choice(words) for words in (NAMES, ITEMS, CITIES))
        problem = random_of.choice(list(PROBLEMS))
        order = str(random_of.randint(10_000, 99_999))
        phone = f"{random_of.randint(200, 999)}-{random_of.randint(100, 999)}-{random_of.randint(1_000, 9_999)}"
        mail = f"{name.lower()}{random_of.randint(1, 99)}@mail.com"
        contacts = f"Call me at {phone}.", f"Write to {mail}.", f"You can reach me at {mail} or {phone}."
        sentences = [f"The {item} from order {order} {problem}.", random_of.choice(contacts)]
        random_of.shuffle(sentences)
        message = " ".join([f"Hi, this is {name} from {city}.", *sentences])
        prompt = [{"role": "user", "content": f"{REQUEST}\n\nMessage: {message}"}]
        yield {"prompt": prompt, "message": message, "facts": [order, item, PROBLEMS[problem], city]}


def coverage(completions, facts, **columns):
    """The share of the facts in a note: order, item, problem and city."""
    shares = []
    for note, words in zip(texts(completions), facts, strict=True):
        covered = [re.search(rf"\b{word}\b", note, re.IGNORECASE) is not None for word in words]
        shares.append(sum(covered) / len(words))
    return shares


def leak(completions, **columns):
    """An indicator of a phone number or an e-mail address."""
    return [float(CONTACT.search(note) is not None) for note in texts(completions)]


def grounded(completions, message, **columns):
    """An indicator: the message has every number of the note."""
    indicators = []
    for note, source in zip(texts(completions), message, strict=True):
        numbers, source_numbers = (set(re.findall(r"\d+", text)) for text in (note, source))
        indicators.append(float(numbers <= source_numbers))
    return indicators


def texts(completions):
    return [completion[0]["content"] for completion in completions]


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for split, count, seed in (("train", 2_500, 0), ("test", 2_000, 1)):
        rows = list(messages(count, seed))
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(f"{len(rows):,} messages in {folder / split}.jsonl")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
