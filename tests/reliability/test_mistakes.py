"""Every mistake of a new user in mistakes.py has a good answer."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.reliability.mistakes import MISTAKES, judged, try_mistake


@pytest.mark.slow
def test_answers_are_good() -> None:
    with ThreadPoolExecutor(2) as pool:  # the mistakes run in processes of their own
        answers = list(pool.map(try_mistake, MISTAKES))
    bad = [f"{a.name}: exit status {a.status}, {a.lines} lines\n{a.text}" for a in answers if not a.good]
    assert not bad, "\n\n".join(bad)


def test_a_traceback_or_an_answer_that_names_no_setting_is_not_good() -> None:
    mistake = next(m for m in MISTAKES if m.name == "gpu_without_a_gpu")
    error = "lightning_cgrpo: error: Expected trainer.accelerator to be there"
    assert judged(mistake, 2, f"noise\n{error}").good
    assert not judged(mistake, 2, "lightning_cgrpo: error: Expected another").good
    assert not judged(mistake, 1, "Traceback (most recent call last):\n  a\n  b\n" + error).good
    assert not judged(mistake, None, error).good
    assert not judged(mistake, 0, "done").good
