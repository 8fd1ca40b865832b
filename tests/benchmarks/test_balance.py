"""The table of docs/multi_gpu.md is that of the code."""

import json

from benchmarks.balance import RESULTS, SETTINGS, simulated


def test_a_row_of_the_table():
    rows = json.loads(RESULTS.read_text())
    (row,) = (row for row in rows if row["lengths"] == "reasoning" and row["processes"] == 8 and row["steps"] == 4)
    before, after = simulated("reasoning", *SETTINGS[3])
    assert (round(before, 3), round(after, 3)) == (row["as_sampled"], row["exchanged"])
    assert before > 1.5 and after < 1.05
