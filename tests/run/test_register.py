"""The file of the register: every line that was written whole counts, whatever else happened to the file."""

import json
from pathlib import Path

import pytest

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.run.register import EDITED, FILE, Register, digest_of


@pytest.fixture
def register(tmp_path):
    register = Register(tmp_path)
    for number in range(3):
        register.append({"event": "test", "number": number})
    return register


def numbers(register):
    return [entry["number"] for entry in register.entries()]


def test_a_last_line_without_its_end_counts_if_it_is_whole(register):
    register.file.write_bytes(register.file.read_bytes()[:-1])
    assert numbers(register) == [0, 1, 2]
    register.append({"event": "test", "number": 3})
    assert numbers(register) == [0, 1, 2, 3] and not any(EDITED in entry for entry in register.entries())


@pytest.mark.parametrize("tail", ['{"event": "te', '{"event": "test", "number": 9, "digest": "0"}', "7", "\xff"])
def test_a_part_of_a_line_does_not_count(register, tail):
    with register.file.open("a") as file:
        file.write(tail)
    assert numbers(register) == [0, 1, 2]
    register.append({"event": "test", "number": 3})
    assert numbers(register) == [0, 1, 2, 3] and len(register.file.read_text().splitlines()) == 4


def test_empty_lines_are_skipped(register):
    register.file.write_text(register.file.read_text().replace("\n", "\n\n \n"))
    register.append({"event": "test", "number": 3})
    assert numbers(register) == [0, 1, 2, 3] and not any(EDITED in entry for entry in register.entries())


def test_an_edited_line_is_told_and_a_damaged_one_refused(register):
    text = register.file.read_text()
    register.file.write_text(text.replace('"number": 1', '"number": 5'))
    assert [EDITED in entry for entry in register.entries()] == [False, True, False]
    register.file.write_text(text + "no entry\n")
    for use in (register.entries, lambda: register.append({"event": "test"})):
        with pytest.raises(UserError, match="but it is damaged"):
            use()


def test_numbers_as_names_and_paths_are_read_as_they_were_written(register):
    written = register.append({"event": "test", "number": 3, "sizes": {2: 1, 10: 2}, "place": Path("a/b")})
    assert register.entries()[-1] == written and written["place"] == "a/b"
    assert digest_of({"a": {2: 1}}) == digest_of({"a": {"2": 1}})


def test_a_cost_of_one_digest(register, monkeypatch):
    """Of a long register, too."""
    calls = []
    monkeypatch.setattr("lightning_cgrpo.run.register.digest_of", lambda *given: calls.append(0) or digest_of(*given))
    register.append({"event": "test", "number": 3})
    assert len(calls) == 1


def test_a_project_counts_by_its_register(tmp_path, monkeypatch):
    named, near = tmp_path / "named", tmp_path / "near"
    run = near / "runs/mine"
    for folder in (named, run):
        folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert Register.of(str(named), run).file == named / FILE, "before any look"
    Register(near).append({"event": "test"})
    assert Register.of(str(named), run).file == near / FILE, "the named folder was emptied"
    Register(named).append({"event": "test"})
    assert Register.of(str(named), run).file == named / FILE
    assert Register.of(str(tmp_path / "gone"), run).file == near / FILE


def test_a_folder_without_locks_is_refused_in_a_line(register, monkeypatch):
    def unlocked(*_):
        raise NotImplementedError("no locks here")

    monkeypatch.setattr("filelock.FileLock.acquire", unlocked)
    with pytest.raises(UserError, match=r"but got: .*no locks here"), register.locked():
        pass


def test_a_folder_that_is_not_written_through_keeps_the_look(register, monkeypatch):
    def refused(*_):
        raise OSError("Operation not supported")

    monkeypatch.setattr("os.open", refused)
    register.append({"event": "test", "number": 3})
    assert json.loads(register.file.read_text().splitlines()[-1])["number"] == 3
