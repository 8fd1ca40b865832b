r"""MATH-like answers: equal expressions count, whatever their form."""

import threading

import pytest

from lightning_cgrpo.tasks.functions import math_correct

RIGHT = [
    (r"so \boxed{\frac{14}{3}}", r"\frac{14}{3}"),
    (r"$\boxed{0.5}$", "1/2"),
    (r"The point is $\boxed{(3, \frac{\pi}{2})}$", r"\left( 3, \frac{\pi}{2} \right)"),
    (r"\boxed{2\sqrt{5}}", r"$\sqrt{20}$"),
    (r"\boxed{(-\infty, 2]}", r"(-\infty,2]"),
    (r"First $x=7$, and therefore \boxed{9}.", "9"),
    ([{"role": "assistant", "content": "The answer is 1,234."}], 1234),
]
WRONG = [
    (r"\boxed{\frac{14}{4}}", r"\frac{14}{3}"),
    ("I give up.", "3"),
    (r"First \boxed{7}, then $9$", "9"),
    ("", "1"),
]


@pytest.mark.parametrize(("completion", "gold"), [*RIGHT, *WRONG])
def test_equal_formulas_are_right(completion, gold):
    assert math_correct([completion], [gold]) == [float((completion, gold) in RIGHT)]


def test_in_a_thread_and_without_a_gold_answer():
    results = []
    thread = threading.Thread(target=lambda: results.append(math_correct(["$3$"] * 3, ["3", "$$", None])))
    thread.start()
    thread.join()
    assert results == [[1.0, None, None]]
