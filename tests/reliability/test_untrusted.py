"""What others wrote: any input gives a value or the documented error, in time linear in its length."""

import time

import pytest

from benchmarks import fuzz
from driving_scenes.json_fields import SceneError, load_json
from lightning_cgrpo.core.prompts.records import RecordError, read_records
from lightning_cgrpo.tasks.driving.answers import AnswerFormat
from lightning_cgrpo.tasks.gsm8k.scoring import score_completion


@pytest.mark.parametrize("name", list(fuzz.targets()))
def test_any_input_is_read_or_refused(name):
    """A few of the 127,000 inputs of benchmarks/fuzz.py."""
    target = fuzz.targets()[name]
    count, valid = fuzz.fuzz(target, 60, number=1)
    assert count >= 50 and valid > 0


PATHOLOGICAL = {
    "digits": "9",
    "brackets": "[",
    "pairs": "[1,2]",
    "nested tags": "<answer><think>",
    "closing tags": "</think>\n<answer>",
    "marks": "#### ",
    "commas": "1,",
    "halves of surrogate pairs": "\ud800",
    "replaced bytes": b"\xff\xfe".decode(errors="replace"),
    "blanks": " \n",
}


def least_time(read, text):
    times = []
    for _ in range(3):
        started = time.process_time()
        read(text)
        times.append(time.process_time() - started)
    return min(times)


@pytest.mark.parametrize("piece", PATHOLOGICAL.values(), ids=PATHOLOGICAL)
@pytest.mark.parametrize("wrapped", ["{}", "<think>1</think>\n<answer>{}</answer>"])
def test_a_pathological_completion_takes_linear_time(piece, wrapped):
    """A million characters take at most so much longer than a hundred thousand, and never seconds."""
    small, large = (wrapped.format(piece * (size // len(piece))) for size in (10**5, 10**6))
    form = AnswerFormat()
    for read in (lambda text: score_completion(text, text), form.read):
        # A factor of 10 would be linear, of 100 quadratic; a floor, for what takes microseconds.
        took = least_time(read, large)
        assert took < 40 * max(least_time(read, small), 1e-4) and took < 1


@pytest.mark.parametrize("line", [b"[" * 10**6, b'{"a":' * 10**6, b"9" * 10**6, b"\xff" * 10**6, b'"' + b"\\u" * 10**6])
def test_pathological_lines_of_data(tmp_path, line):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"prompt": "fine"}\n' + line)
    with pytest.raises(RecordError, match=r"a\.jsonl:2: Expected "):
        read_records(file)
    with pytest.raises(SceneError, match=r"a\.jsonl: Expected JSON"):
        load_json(file)
