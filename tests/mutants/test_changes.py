"""The changes that the mutants' tool makes: of expressions, guards, masks, returns, constants and defaults."""

import sys
import types

import pytest

from tests.mutants.changes import code_of, mutants_of, value_of
from tests.mutants.core import core_files, room_of, set_constant, set_default

SOURCE = """
LIMIT = 3
SHARE = 0.5


class Part:
    size = 2

    def kept(self, values, mask, least=1, *, strict_sum=False):
        if len(values) < least:
            raise ValueError("few")
        if not strict_sum:
            return where(mask, values, 0)
        return values.masked_fill(mask, 0) * LIMIT
"""


@pytest.fixture
def changes(tmp_path):
    (tmp_path / "part.py").write_text(SOURCE)
    return {mutant.change: mutant for mutant, _ in mutants_of(tmp_path, "part.py")}


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("LIMIT = 3  ->  4", "constant"),
        ("SHARE = 0.5  ->  1.0", "constant"),
        ("Part.size = 2  ->  3", "constant"),
        ("least = 1  ->  2", "default"),
        ("strict_sum = False  ->  True", "default"),
        ("if len(values) < least  ->  pass", "code"),  # the guard
        ("if not strict_sum  ->  pass", "code"),
        ("return where(mask, values, 0)  ->  pass", "code"),  # the early return
        ("where(mask, values, 0)  ->  values", "code"),  # the mask
        ("values.masked_fill(mask, 0)  ->  values", "code"),
        ("len(values) < least  ->  len(values) <= least", "code"),
        ("values.masked_fill(mask, 0) * LIMIT  ->  values.masked_fill(mask, 0) / LIMIT", "code"),
    ],
)
def test_an_experts_fears_are_among_the_changes(changes, tmp_path, change, kind):
    mutant = changes[change]
    assert mutant.kind == kind
    if kind == "code":
        assert code_of(mutant, tmp_path).co_qualname == "Part.kept"


def test_the_last_return_is_no_early_one(changes):
    assert "return values.masked_fill(mask, 0) * LIMIT  ->  pass" not in changes


def test_constants_and_defaults_are_changed_where_they_are_used(changes, monkeypatch):
    module, other = types.ModuleType("part_of_mutants"), types.ModuleType("user_of_mutants")
    exec(SOURCE, module.__dict__)
    other.__dict__["LIMIT"] = module.LIMIT
    monkeypatch.setitem(sys.modules, "part_of_mutants", module)
    monkeypatch.setitem(sys.modules, "user_of_mutants", other)
    assert value_of(changes["LIMIT = 3  ->  4"]) == ("LIMIT", 4)
    set_constant("part_of_mutants.py", "Part.size", 7)
    set_constant("part_of_mutants.py", "SHARE", 9.0)
    assert (module.Part.size, module.SHARE, other.LIMIT) == (7, 9.0, 3)
    set_default(module.Part.kept, "least", 5)
    set_default(module.Part.kept, "strict_sum", True)
    assert module.Part.kept.__defaults__ == (5,) and module.Part.kept.__kwdefaults__ == {"strict_sum": True}


def test_all_rooms_are_changed():
    rooms = {room_of(file) for file in core_files()}
    assert rooms >= {"callbacks", "checkpoints", "cli", "core", "datamodules", "grading", "grpo", "modules", "samplers"}
    assert rooms >= {"multipliers", "objective", "policies", "tasks", "driving_scenes", "navsim_score"}
