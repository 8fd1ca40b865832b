"""The changes that the mutants' tool makes: of expressions, guards, masks, returns, constants and defaults."""

import json

import pytest

from tests.mutants.__main__ import HERE, WITHOUT, files, room_of
from tests.mutants.changes import mutants_of
from tests.of import ROOT

SOURCE = '''
"""Of 3 parts."""
LIMIT = 3


class Part:
    share: float = 0.5

    def kept(self, values, mask, least=1, *, strict_sum=False):
        """Not 5."""
        if len(values) < least:  # a comment stays
            raise ValueError(f"few, not {least + 7}")
        elif least == 4:
            return values
        if not strict_sum:
            return where(mask, values, 0)
        self.count += values.min()
        warn("more", stacklevel=2)
        return values.masked_fill(mask, 0) * LIMIT
'''
CHANGES = {
    "LIMIT: 3  ->  4",
    "Part.share: 0.5  ->  1.5",
    "Part.kept(least): 1  ->  2",
    "Part.kept(strict_sum): False  ->  True",
    "Part.kept: len(values) < least  ->  len(values) <= least",
    "Part.kept: len(values) < least  ->  not len(values) < least",
    "Part.kept: least == 4  ->  least != 4",
    "Part.kept: 4  ->  5",
    "Part.kept: return values  ->  pass",  # an early return
    "Part.kept: not strict_sum  ->  strict_sum",
    "Part.kept: return where(mask, values, 0)  ->  pass",
    "Part.kept: where(mask, values, 0)  ->  values",  # a mask
    "Part.kept: 0  ->  1",
    "Part.kept: self.count += values.min()  ->  self.count -= values.min()",
    "Part.kept: self.count += values.min()  ->  pass",
    "Part.kept: values.min()  ->  values.max()",
    "Part.kept: values.masked_fill(mask, 0) * LIMIT  ->  values.masked_fill(mask, 0) / LIMIT",
    "Part.kept: values.masked_fill(mask, 0)  ->  values",
    "Part.kept: 0  ->  1 (2)",
}


@pytest.fixture
def changes(tmp_path):
    (tmp_path / "part.py").write_text(SOURCE)
    return {mutant.name.removeprefix("part.py "): mutant for mutant in mutants_of(tmp_path, "part.py")}


def test_slips_and_an_experts_fears_are_the_changes(changes):
    """Texts, raised errors and a function's last return do not change; a guard before ``elif`` stays."""
    assert changes.keys() == CHANGES


def test_a_guard_is_left_out(tmp_path):
    source = "def check(values):\n    if not values:\n        raise ValueError\n    return values\n"
    (tmp_path / "part.py").write_text(source)
    (mutant,) = (mutant for mutant in mutants_of(tmp_path, "part.py") if mutant.new == "pass")
    assert mutant.source(tmp_path).decode() == "def check(values):\n    pass\n    return values\n"


def test_a_change_leaves_the_rest_as_it_was(changes, tmp_path):
    mutant = changes["Part.kept: len(values) < least  ->  len(values) <= least"]
    expected = SOURCE.replace("len(values) < least", "(len(values) <= least)")
    assert (mutant.source(tmp_path).decode(), mutant.line) == (expected, 11)


def test_every_change_can_be_compiled(changes, tmp_path):
    sources = {mutant.source(tmp_path) for mutant in changes.values()}
    assert len(sources) == len(CHANGES)
    for source in sources:
        compile(source, "part.py", "exec")


def test_all_rooms_are_changed():
    """Every folder of the packages has a changed file, unless `WITHOUT` names it."""
    rooms = {room_of(file) for file in files()}
    folders = {folder.name for folder in (ROOT / "lightning_cgrpo").iterdir() if (folder / "__init__.py").is_file()}
    assert rooms == folders | {"lightning_cgrpo", "driving_scenes", "navsim_score"}
    assert not [without for without in WITHOUT if without in files()]


def test_mutants_without_a_change_of_behavior_exist():
    """A name in equivalent.json whose code has changed says nothing any more."""
    named = {name for names in json.loads((HERE / "equivalent.json").read_text()).values() for name in names}
    found = {mutant.name for file in {name.split()[0] for name in named} for mutant in mutants_of(ROOT, file)}
    assert named <= found
