"""Settings of objects tell what a run was made of, and no secret."""

from lightning_cgrpo.settings.objects import Stated, described
from lightning_cgrpo.settings.settings import settings_of


class Judge(Stated):
    def __init__(self, key: str, words: frozenset[str] = frozenset()) -> None:
        self.key, self.words = key, words


def test_a_value_of_the_environment_is_written_as_a_short_hash(monkeypatch):
    found = []
    for secret in ("sk-1234567890", "sk-0987654321"):
        monkeypatch.setenv("JUDGE_OF_OBJECTS", secret)
        found.append(
            settings_of({"model": described({"judge": Judge(secret), "plain": [secret, "a text of no secret"]})})
        )
        assert secret not in repr(found)
    assert found[0]["model.judge.key"].startswith("${oc.env:JUDGE_OF_OBJECTS} (")
    assert found[0] != found[1] and found[0]["model.plain"][1] == "a text of no secret"
    monkeypatch.setenv("JUDGE_OF_OBJECTS", "short")
    assert described("short") == "short"


def test_a_set_has_one_order():
    letters = [chr(number) for number in range(97, 123)]
    assert described(frozenset(letters)) == described({*reversed(letters)}) == letters
    assert described({2, "a", None}) == ["a", 2, None]
