"""The tokenizer of the tiny model that calls a calculator."""

from lightning_cgrpo.tasks.calculator import from_scratch
from lightning_cgrpo.tasks.calculator.from_scratch import CALL, CALL_END, FromScratch


def test_calls_have_tokens_of_their_own_and_texts_come_back(monkeypatch):
    monkeypatch.setattr(from_scratch, "TOKENIZER_TEXTS", 60)
    tokenizer = FromScratch().trained_tokenizer()
    assert len(tokenizer.encode(CALL, add_special_tokens=False)) == 1
    call = f'{CALL}{{"name": "calculator", "arguments": {{"expression": "1 + 1"}}}}{CALL_END}'
    ids = tokenizer.encode(call, add_special_tokens=False)
    assert tokenizer.decode(ids) == call and ids[0] != ids[-1]


def test_the_template_names_tools_without_their_schemas(monkeypatch):
    monkeypatch.setattr(from_scratch, "TOKENIZER_TEXTS", 60)
    tool = {"type": "function", "function": {"name": "calculator", "parameters": {"secret": 1}}}
    asked = [{"role": "user", "content": "Add 1 and 1."}]
    text = FromScratch().trained_tokenizer().apply_chat_template(asked, tools=[tool], tokenize=False)
    assert "calculator" in text and "secret" not in text
