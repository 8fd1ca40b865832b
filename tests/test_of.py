"""Each file of the packages has tests that `tests.of` finds."""

from pathlib import Path

import pytest

from tests import of

FILES = [
    file.relative_to(of.ROOT)
    for folder in (*of.PACKAGES, "callbacks", "datamodules")
    for file in sorted((of.ROOT / folder).rglob("*.py"))
    if file.name != "__init__.py" and not file.is_relative_to(of.ROOT / "lightning_cgrpo/importable")
]


@pytest.mark.slow  # and grimp's threads would stop a fork of tests.mutants
def test_every_file_has_tests():
    assert len(FILES) > 300
    assert [str(file) for file in FILES if not of.tests_of(file)] == []


@pytest.mark.parametrize(
    ("file", "test"),
    [
        ("lightning_cgrpo/grpo/advantages.py", "tests/grpo/test_advantages.py"),
        ("lightning_cgrpo/modules/policy_steps.py", "tests/modules/test_constrained_grpo.py"),
        ("lightning_cgrpo/cli/certify/certificate_table.py", "tests/cli/test_certify.py"),
        ("callbacks/progress.py", "tests/callbacks/test_progress.py"),
        ("navsim_score/two_stage.py", "tests/navsim_score/test_two_stage.py"),
        ("lightning_cgrpo/objective/constraint.py", "tests/objective/test_grammar.py"),  # by another file
    ],
)
def test_the_nearest_tests_are_found(file, test):
    assert Path(test) in of.tests_of(Path(file))


def test_other_files_are_refused():
    assert of.module_of(Path("datamodules/base.py")) == "lightning_cgrpo.datamodules.base"
    with pytest.raises(SystemExit, match="Expected a file of"):
        of.tests_of(Path("benchmarks/duals.py"))
