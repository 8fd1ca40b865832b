r"""MATH-like answers: equal expressions count, whatever their form."""

import threading

import pytest

from lightning_cgrpo.tasks.functions import math_correct

HALF = "\N{VULGAR FRACTION ONE HALF}"
RIGHT = [
    (r"so \boxed{\frac{14}{3}}", r"\frac{14}{3}"),
    (r"$\boxed{0.5}$", "1/2"),
    (r"The point is $\boxed{(3, \frac{\pi}{2})}$", r"\left( 3, \frac{\pi}{2} \right)"),
    (r"\boxed{2\sqrt{5}}", r"$\sqrt{20}$"),
    (r"\boxed{(-\infty, 2]}", r"(-\infty,2]"),
    (r"First $x=7$, and therefore \boxed{9}.", "9"),
    ([{"role": "assistant", "content": "The answer is 1,234."}], 1234),
    (r"\boxed{0.00001}", 1e-5),
    (r"\boxed{10^{-5}}", 1e-5),
    (r"\boxed{1.5 \times 10^{-5}}", 1.5e-5),
    ("The answer is 1e-05.", 1e-5),
    (r"\boxed{10000000000000000}", 1e16),
    (r"\boxed{1{,}234}", 1234),
    ("It is 1 1/2.", "1 1/2"),
    (r"\boxed{\frac{3}{2}}", "1 1/2"),
    (r"\boxed{1.5}", r"1\frac{1}{2}"),
    (r"\boxed{-2\frac{3}{4}}", "-2 3/4"),
    (r"\boxed{1 1/2}", 1.5),
    (r"\boxed{12}", "12 dollars"),
    (r"\boxed{12 \text{ dollars}}", "12"),
    (r"\boxed{12 dollars}", 12),
    (r"\boxed{\$12}", "$12 per day"),
    (r"It is 12 apples.", "12"),
    (r"First \boxed{7}, no, \boxed{9}", "9"),
    (r"$\boxed{7}$, no, $\boxed{\frac{1}{2}}$", "0.5"),
    (r"\boxed{0.333333}", "1/3"),
    (r"\boxed{0.3333333333}", r"\frac{1}{3}"),
    (r"\boxed{3.14159265}", r"\pi"),
    (r"\boxed{2\pi}", r"2\pi"),
    (r"\boxed{x=3}", "x=3"),
    (r"\boxed{4, 3}", r"3 \text{ and } 4"),
    (r"\boxed{1/2 cup}", "0.5"),
    (r"\boxed{1\,234}", "1 234"),
    (r"\boxed{2\frac12}", "2\N{VULGAR FRACTION ONE HALF}"),
    (r"\boxed{5}", "5 cm^2"),
    (r"\boxed{5 m/s}", "5 km/h per second"),
    (r"\boxed{12}", "12 US dollars"),
    (r"\boxed{50\%}", r"50\%"),
    ("It is $10^{5}$.", 100_000),
    (r"It is $2\pi$.", r"2\pi"),
    ("So $2x + 1$", "1 + 2x"),
    ("$5!$", 120),
    ("It is **5**.", 5),
    (r"\boxed{12}", "12 (dollars)"),
    (r"\boxed{6.02 x 10^{3}}", "6020"),
    (r"\boxed{5000}", "5 \N{MIDDLE DOT} 10^3"),
    (r"\boxed{0.5}", "1\N{FRACTION SLASH}2"),
    ("It is \N{MINUS SIGN}3.", -3),
    ("It is \N{MINUS SIGN}1 1/2.", "-1.5"),
]
WRONG = [
    (r"\boxed{\frac{14}{4}}", r"\frac{14}{3}"),
    ("I give up.", "3"),
    (r"First \boxed{7}, then $9$", "9"),
    ("", "1"),
    (r"\boxed{e-5}", 1e-5),
    (r"\boxed{e - 5}", "1e-05"),
    (r"\boxed{0}", 1e-7),
    (r"\boxed{0.1234568}", "0.1234567"),
    (r"\boxed{0.00000013}", 1.2e-7),
    (r"\boxed{0.3333}", "1/3"),
    (r"\boxed{1/2}", "1 1/2"),
    ("It is 1.", "1 1/2"),
    ("It is 1 1/2.", "1"),
    (r"First \boxed{7}, no, \boxed{9}", "7"),
    (r"First \boxed{7}, no, \boxed{9}", r"\{7, 9\}"),
    (r"\boxed{3 million}", "3"),
    ("It is 3 million.", "3"),
    ("It is 2 dozens.", "2"),
    (r"\boxed{1e999999}", "1"),
    *[(text, "10") for text in ("It is $10^{5}$.", "$10 + 3$", r"$10 \text{ million}$", "$10$ million", "10-12.")],
    *[(text, "10") for text in ("It is 10:30.", "5 * 10", "10\N{SUPERSCRIPT THREE}.", f"10 {HALF}.")],
    *[(text, "2") for text in (r"It is $2\pi$.", "So $2x + 1$", "It is 2\N{FRACTION SLASH}3.")],
]
UNREADABLE = [
    *("3 million", "2 dozens", "3 quarters", "1e999999", "1e-05 x", "1 1/2 x", "6 ft 2 in", "5\N{SUPERSCRIPT TWO}"),
    *("5'11\"", "$5M", "$5 bn", "5 \N{MULTIPLICATION SIGN} 10\N{SUPERSCRIPT THREE}", "10\N{SUPERSCRIPT MINUS}"),
    *("10**3", "12 13", "1..5", "3 & 1/2", "4 zillion", "4 billionths", "5 Mrd", "3 doz", "5 twentieths"),
    *(float("nan"), float("inf"), True, None, "$$"),
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


@pytest.mark.parametrize("gold", UNREADABLE)
def test_a_gold_answer_that_cannot_be_read_does_not_apply(gold):
    assert math_correct([r"\boxed{3}", "1", ""], [gold] * 3) == [None] * 3
