"""Stop strings: an answer ends with the token that completes one, in every engine, beside a search in decoded texts."""

from types import SimpleNamespace

import pytest
import torch

from lightning_cgrpo import Constraint, FunctionTask, Objective
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import read_steps
from lightning_cgrpo.datamodules import PromptDataModule
from lightning_cgrpo.policies.computations.packed import PackedPrompts
from lightning_cgrpo.policies.computations.padded import PaddedRows
from lightning_cgrpo.policies.tiny.text import TURN_END
from lightning_cgrpo.samplers import transformers_engine
from lightning_cgrpo.samplers.conversation.sampler import ConversationSampler
from lightning_cgrpo.samplers.conversation.template import ChatTemplate
from lightning_cgrpo.samplers.ends import first_end, spellings
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.generation import GenerationSampler
from lightning_cgrpo.samplers.transformers_engine import LOOK_EVERY
from tests.grids import grid_module
from tests.memory import Memory
from tests.quiet import quiet_trainer
from tests.samplers.rolled import TEXTS, answers, groups, noise_for, rolled, same
from tests.samplers.talks import made
from tests.samplers.test_conversation_users import Asker, chats
from tests.samplers.vllm_client import generate, make_policy

RATES = {"rate/truncated", "val/rate/truncated"}
STOPS = {
    "one letter": ("e",),
    "of several tokens": ("er", "in", "at", "re", "he", "ss", "nd", "an", "ow", "a7"),
    "begins within a token": ("s a", " t"),
    "two, one in the other": ("ap", "a"),
    "two bytes": ("é", "e"),
}


@pytest.fixture(scope="module")
def policy(directory):
    policy = make_policy(directory, dtype="float64")
    policy.stop_tokens = policy.stop_tokens[:2]
    return policy


def text_of(policy, tokens):
    return policy.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def end_by_text(policy, tokens, stop, least=0):
    """The first length whose text holds one more stop string than the text before, or whose token is a stop token."""
    for length in range(1, len(tokens) + 1):
        whole, before = text_of(policy, tokens[:length]), text_of(policy, tokens[: length - 1])
        completes = any(whole.count(text) > before.count(text) for text in stop)
        if tokens[length - 1] in policy.stop_tokens or (completes and length >= least):
            return length
    return None


def check_ends(policy, free, ended, stop):
    """Answers end where those without strings hold one; how many did."""
    by_string = 0
    for b in range(len(TEXTS)):
        for tokens, found, cut in zip(answers(free, b), answers(ended, b), ended.info["truncated"][b], strict=True):
            length = end_by_text(policy, tokens, stop)
            assert found == tokens[:length] and bool(cut) == (length is None)
            by_string += length is not None and tokens[length - 1] not in policy.stop_tokens
    return by_string


@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
@pytest.mark.parametrize("least", [0, 9])
def test_answers_end_where_their_text_first_holds_a_string(policy, stop, least):
    """Without strings, the same draws go on; with strings, the answers are beginnings of those."""
    free, ended = rolled(policy, 40, 24), rolled(policy, 40, 24, stop=stop)
    least_ended = rolled(policy, 40, 24, stop=stop, min_new_tokens=least) if least else ended
    assert check_ends(policy, free, ended, stop) > 5 and not ended.info["truncated"].all()
    for tokens in (tokens for b in range(len(TEXTS)) for tokens in answers(least_ended, b)):
        assert end_by_text(policy, tokens, stop, least) in (None, len(tokens)) and len(tokens) >= least


@pytest.mark.parametrize("kind", ["shared", "padded", "pages"])
@pytest.mark.parametrize(("look_every", "batch_size"), [(1, None), (8, None), (1, 34), (8, 34)])
def test_looks_joins_and_computations_change_no_answer(policy, monkeypatch, kind, look_every, batch_size):
    prompts = groups([f"{text} {number}" for number, text in enumerate(TEXTS * 4)])
    options = {"stop": ["e", "at"], "min_new_tokens": 3}
    expected = rolled(policy, 40, 4, prompts, **options)
    monkeypatch.setattr(policy, "computation", PaddedRows() if kind == "padded" else PackedPrompts())
    monkeypatch.setattr(transformers_engine, "IN_PAGES", {"cpu"} if kind == "pages" else set())
    monkeypatch.setitem(LOOK_EVERY, "cpu", look_every)
    same(rolled(policy, 40, 4, prompts, batch_size=batch_size, **options), expected)
    assert len(expected.lengths.unique()) > 5


@pytest.mark.parametrize(
    "writing",
    [["</answer>"], ["<", "/", "answer", ">"], ["7</ans", "wer> and"], ["x<", "</", "answer>!"], [*"</answer>"]],
)
def test_a_string_in_several_tokens_is_found_wherever_tokens_divide_it(policy, writing):
    tokens = [token for part in writing for token in policy.tokenizer(part, add_special_tokens=False).input_ids]
    before = policy.tokenizer("7 is", add_special_tokens=False).input_ids
    whole = [*before, *tokens, 40, 41]
    end = first_end(policy, whole, (), ("</answer>",), 0)
    assert end is not None and end <= len(before) + len(tokens)
    assert "</answer>" in text_of(policy, whole[:end]) and "</answer>" not in text_of(policy, whole[: end - 1])


def test_letters_and_special_tokens_in_parts_are_found(policy):
    bytes_of = spellings(policy.tokenizer, len(policy.output_weight))
    parts = [bytes_of.index(bytes([byte])) for byte in "é".encode()]
    assert first_end(policy, [50, *parts, 51], (), ("é",), 0) == 3
    (end,) = policy.tokenizer(TURN_END, add_special_tokens=False).input_ids
    assert first_end(policy, [50, end, 51], (), (TURN_END,), 0) == 2
    assert first_end(policy, [50, 51], (), (TURN_END,), 0) is None and first_end(policy, [], (), ("é",), 0) is None


def test_texts_of_tokens_are_the_tokenizers(policy):
    spelled = spellings(policy.tokenizer, len(policy.output_weight))
    ids = policy.tokenizer("Ça va? <think>12 + 3</think>\n\nÉté…", add_special_tokens=False).input_ids
    assert b"".join(spelled[token] for token in ids).decode() == "Ça va? <think>12 + 3</think>\n\nÉté…"


def test_texts_of_tokens_with_word_marks_and_bytes():
    """As of Llama 2 and Gemma: a mark for the space, and bytes by their names."""
    from tokenizers import Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    words = ["<0xC3>", "<0xA9>", "▁", "</", "an", "swer>", "▁an", "▁</"]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, [], byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    spelled = spellings(PreTrainedTokenizerFast(tokenizer_object=tokenizer), len(words) + 3)
    assert spelled == [b"\xc3", b"\xa9", b" ", b"</", b"an", b"swer>", b" an", b" </", b"", b"", b""]


def test_vllm_ends_answers_at_the_same_tokens(engine, served, directory):
    policy = make_policy(directory)
    policy.stop_tokens = policy.stop_tokens[:2]
    stop = ("e", "at", "é")
    with torch.inference_mode():
        free = generate(engine, policy, Sampling(8))
        made = generate(engine, policy, Sampling(8, stop=stop))
        late = generate(engine, policy, Sampling(8, 4, stop=stop))
    check_ends(policy, free, made, stop)
    for tokens in (tokens for b in range(3) for tokens in answers(late, b)):
        assert end_by_text(policy, tokens, stop, 4) in (None, len(tokens))
    whole = torch.equal(made.sampling_log_probs[made.mask], free.sampling_log_probs[made.mask])
    assert whole and (made.lengths < free.lengths).any() and int(late.lengths.min()) >= 4
    asked = served.asked[-1][0]
    assert asked["stop"] == list(stop) and asked["skip_special_tokens"] is False


def test_a_server_that_ends_late_is_cut_and_one_that_ends_early_is_refused(engine, served, directory):
    policy = make_policy(directory)
    policy.stop_tokens = policy.stop_tokens[:1]
    spelled = policy.tokenizer("the answer</answer>", add_special_tokens=False).input_ids
    written = [[*spelled, 50], [-0.5] * (len(spelled) + 1), "stop"]
    sampling = Sampling(len(spelled) + 4, stop=("</answer>",))
    with engine.session(policy):
        served.engine.faulty = lambda *answer: written
        prompts = policy.read_prompts(["Tom"])
        draws = torch.zeros(1, 1, len(spelled) + 4, dtype=torch.float64)
        made = engine.generate(policy, prompts, 1, sampling, draws)
        assert answers(made, 0) == [spelled] and not made.info["truncated"].any()
        written[:2] = spelled[:-1], [-0.5] * (len(spelled) - 1)
        with pytest.raises(UserError, match="until a stop token or stop string"):
            engine.generate(policy, prompts, 1, sampling, draws)
        served.engine.faulty = None


def test_a_string_ends_a_turn_and_the_template_closes_it():
    talking = made()  # its turns rarely end by themselves
    prompts = chats((0, 2))
    sampler = ConversationSampler(400, environment_factory=Asker, stop=["a", "e"])
    rollouts = sampler.rollout(talking, prompts, 3, noise_for(prompts))
    template = ChatTemplate(talking, [], user=True)
    closing = template.reply([{"role": "user", "content": "And after 1?"}], ended=False)
    assert closing[0] == talking.tokenizer.convert_tokens_to_ids(TURN_END)
    assert closing[1:] == template.reply([{"role": "user", "content": "And after 1?"}])
    by_string = 0
    for actions, mask, turns, messages in zip(
        rollouts.actions[1], rollouts.mask[1], rollouts.info["turns"][1], rollouts.info["messages"][1], strict=True
    ):
        first = turns[0].end
        if actions[first - 1] not in talking.stop_tokens:
            by_string += 1
            assert actions[first : first + len(closing)].tolist() == closing
            assert not mask[first : first + len(closing)].any() and mask[first - 1]
            assert messages[0]["content"][-1] in "ae" or any(x in messages[0]["content"][-3:] for x in "ae")
            assert not any(x in messages[0]["content"][:-4] for x in "ae")
        assert len(turns) == 3 and read_steps(mask).sum() == turns[-1].end
    assert by_string > 1 and not rollouts.info["truncated"].any()


def test_training_and_evaluation_end_answers_alike_and_count_none_as_truncated(directory):
    seen = []

    def ends(completions, **_):
        seen.extend(completions)
        return [float(len(text)) for text in completions]

    policy = make_policy(directory)
    policy.stop_tokens = policy.stop_tokens[:1]
    module = grid_module(
        policy=policy,
        sampler=GenerationSampler(60, stop=[" ", "e", "a", "o"]),
        task=FunctionTask({"ends": ends}),
        objective=Objective("ends", {"truncated": Constraint(at_most=0.5, role="monitor")}),
        group_size=6,
    )
    rows = [{"prompt": text} for text in TEXTS]
    record, prompts = Memory(), PromptDataModule(rows, val_path=rows, prompts_per_update=3)
    quiet_trainer(record, logger=record, max_steps=2).fit(module, prompts)
    trained = len(seen)
    quiet_trainer(record, logger=record, limit_val_batches=1).validate(module, prompts, verbose=False)
    assert trained == 36 and len(seen) > trained
    assert all({*text} & {*" eao"} for text in seen)
    assert not any({*text[:-12]} & {*" eao"} for text in seen), "nothing after the token with the first"
    rates = [value for metrics in record.metrics for name, value in metrics.items() if name in RATES]
    assert len(rates) == 3 and not any(rates)


@pytest.mark.parametrize(
    ("stop", "message"),
    [("</answer>", "stop.* a list of strings"), (["a", ""], "strings of at least one letter")],
)
def test_what_is_no_list_of_strings_is_refused(stop, message):
    with pytest.raises(ValueError, match=message):
        GenerationSampler(4, stop=stop)


def test_a_string_that_the_tokenizer_changes_is_refused_before_training(policy):
    """NFC writes e and an accent as one letter, so no answer would hold the two."""
    with pytest.raises(UserError, match="but got 'e\u0301', try a string"):
        GenerationSampler(4, stop=["x", "e\u0301"]).check(policy, SimpleNamespace(rows=None))
