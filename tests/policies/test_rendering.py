"""What a policy reads: a data set's columns, calls in one form, ends of turns, and what a template drops."""

import datetime
import json

import datasets
import numpy as np
import pandas
import pytest
import torch
import transformers.utils.chat_template_utils as template_utils
from PIL import Image
from transformers import AutoModelForCausalLM, AutoTokenizer

from lightning_cgrpo import CausalLMPolicy, GenerationSampler, VisionLanguagePolicy
from lightning_cgrpo.callbacks.run_manifest import _chat_fingerprints
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.prompts.records import RecordError
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.datamodules import PromptDataModule
from lightning_cgrpo.modules.supervised import demonstration_rollouts
from lightning_cgrpo.policies.rendering import end_of_turn
from lightning_cgrpo.policies.tiny.text import CHAT_TEMPLATE, make_tiny_model
from lightning_cgrpo.run.manifest import Manifest, differences
from lightning_cgrpo.samplers.conversation.sampler import ConversationSampler
from tests.policies.small_policies import loaded
from tests.policies.tiny_vision import make_tiny_vision_model
from tests.samplers.rolled import noise_for
from tests.samplers.talks import TOOLS, add, chats

CHAT = [{"role": "user", "content": "What color?"}]
BLACK, WHITE = (Image.fromarray(np.full((64, 64, 3), value, np.uint8)) for value in (0, 255))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", hidden_size=32, layers=1)


@pytest.fixture
def policy(directory):
    return loaded(directory)


@pytest.fixture(scope="module")
def vision(tmp_path_factory):
    return loaded(make_tiny_vision_model(tmp_path_factory.mktemp("models") / "vision"), VisionLanguagePolicy)


def groups_of(rows, **options):
    source = PromptDataModule(rows, **options).source("train")
    return source.groups(torch.arange(len(source)))


def inputs_of(policy, groups):
    """Of a rollout."""
    return GenerationSampler(8)._read_prompts(policy, groups)


def own_groups(count=1, **columns):
    """As a source of one's own makes them, without `PromptDataModule`."""
    return PromptGroups(torch.arange(count), {"prompt": [CHAT] * count, **columns})


def read(policy, rows, **options):
    """The prompts' texts as the policy reads them."""
    inputs = inputs_of(policy, groups_of(rows, **options))
    kept = zip(inputs["prompt_ids"], inputs["prompt_mask"], strict=True)
    return [policy.tokenizer.decode(row[mask]) for row, mask in kept]


# --- images


def parts(*images):
    shown = [{"type": "image", "image": image} for image in images]
    return [{"role": "user", "content": [*shown, {"type": "text", "text": "What color?"}]}]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"prompt": CHAT, "image": WHITE}, parts(WHITE)),
        ({"prompt": CHAT, "images": [BLACK, WHITE]}, parts(BLACK, WHITE)),
        ({"prompt": "What color?", "image": np.asarray(WHITE)}, parts(WHITE)),
        ({"prompt": parts(None, None), "images": [WHITE, BLACK]}, parts(WHITE, BLACK)),
        ({"prompt": CHAT, "images": []}, CHAT),
        ({"prompt": CHAT, "image": None}, CHAT),
    ],
)
def test_images_of_a_column_are_those_of_the_messages(vision, columns, expected):
    """The inputs are those of a prompt that holds the images itself."""
    ours, theirs = (vision.read_prompts(groups_of([row]).columns["prompt"]) for row in (columns, {"prompt": expected}))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_policy_sees_the_picture_of_a_data_set(vision, tmp_path):
    """As the library datasets writes it to Parquet; pictures differ, and so do the patches."""
    rows = datasets.Dataset.from_list([{"prompt": CHAT, "image": picture} for picture in (BLACK, WHITE)])
    rows.to_parquet(tmp_path / "a.parquet")
    for given in (rows, str(tmp_path / "a.parquet")):
        inputs = vision.read_prompts(groups_of(given).columns["prompt"])
        assert (inputs["prompt_ids"] == vision.image_token).sum(-1).min() > 0
        assert not torch.equal(*inputs["patches"])


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"prompt": CHAT, "image": WHITE, "images": [WHITE]}, "'image' or field 'images', but got both"),
        ({"prompt": CHAT, "images": WHITE}, "'images' to be a list of images"),
        ({"prompt": parts(None), "images": [WHITE, WHITE]}, "as images, 2, but got 1"),
        ({"prompt": parts(BLACK), "image": WHITE}, "as images, 1, but got 0"),
        ({"prompt": [{"role": "system", "content": "Look."}], "image": WHITE}, "a user's message"),
        ({"prompt": CHAT, "tools": ["add"]}, "field 'tools' to be a list of JSON schemas"),
        ({"prompt": CHAT, "tools": "not JSON"}, "field 'tools' to be a list of JSON schemas"),
        ({"prompt": CHAT, "chat_template_kwargs": ["loud"]}, "field 'chat_template_kwargs' to be an object"),
    ],
)
def test_columns_that_fit_no_prompt_are_refused(columns, problem):
    with pytest.raises(RecordError, match=f"row 1: Expected .*{problem}"):
        groups_of([columns])


@pytest.mark.parametrize(
    "columns",
    [
        {"prompt": [CHAT], "image": [WHITE]},
        {"prompt": ["What color?"], "images": [[WHITE, BLACK]]},
        {"prompt": [CHAT], "images": [np.zeros((1, 8, 8, 3), np.uint8)]},
        {"prompt": [parts(None)], "image": [WHITE]},
        {"prompt": [parts(WHITE), CHAT], "image": [WHITE, BLACK]},
    ],
)
@pytest.mark.parametrize("made", [demonstration_rollouts, inputs_of])
def test_images_beside_finished_prompts_are_refused(vision, columns, made):
    count = len(columns["prompt"])
    with pytest.raises(UserError, match=r"column 'images?' beside a prompt of text alone"):
        made(vision, own_groups(count, **columns, completion=["White"] * count))


@pytest.mark.parametrize(
    "columns", [{}, {"image": [None]}, {"images": [[]]}, {"image": ["a label of mine"], "prompt": [parts(WHITE)]}]
)
def test_prompts_without_images_or_with_shown_images_are_read(vision, columns):
    assert len(inputs_of(vision, own_groups(**columns))["prompt_ids"]) == 1


# --- tools and variables of the template


@pytest.mark.parametrize("given", [TOOLS, json.dumps(TOOLS)])
def test_tools_of_a_source_of_ones_own_are_presented(policy, given):
    inputs = inputs_of(policy, own_groups(tools=[given]))
    assert TOOLS[0]["function"]["description"] in policy.tokenizer.decode(inputs["prompt_ids"][0])


@pytest.mark.parametrize(("column", "value"), [("tools", "add"), ("tools", [7]), ("chat_template_kwargs", "loud")])
def test_tools_of_a_source_of_ones_own_that_are_none_are_named(policy, column, value):
    with pytest.raises(UserError, match=f"field '{column}' to be"):
        inputs_of(policy, own_groups(**{column: [value]}))


@pytest.mark.parametrize("given", [TOOLS, json.dumps(TOOLS), [TOOLS[0]["function"]]])
def test_tools_of_a_column_are_presented(policy, given):
    plain, with_tools = read(policy, [{"prompt": CHAT, "tools": None}, {"prompt": CHAT, "tools": given}])
    schemas = json.loads(given) if isinstance(given, str) else given
    written = {"add_generation_prompt": True, "tokenize": False}
    assert with_tools == policy.tokenizer.apply_chat_template(CHAT, tools=schemas, **written)
    assert '"add"' in with_tools and '"add"' not in plain


def test_tools_of_parquet_have_no_nulls(policy, tmp_path):
    other = {"name": "look_up", "description": "", "parameters": {"who": {"type": "string"}}}
    rows = [{"prompt": CHAT, "tools": tools} for tools in (TOOLS, [{"type": "function", "function": other}])]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "a.parquet")
    texts = read(policy, str(tmp_path / "a.parquet"))
    assert not any("null" in text for text in texts) and "look_up" in texts[1] and "who" not in texts[0]


def test_variables_of_a_column_are_those_of_the_policy(directory, policy):
    policy.tokenizer.chat_template = "{%- if loud %}{{ 'LOUD ' }}{%- endif %}" + CHAT_TEMPLATE
    rows = [{"prompt": CHAT, "chat_template_kwargs": {"loud": loud}} for loud in (True, False)]
    loud, quiet = read(policy, rows)
    assert loud == "LOUD " + quiet
    policy.chat_template_kwargs = {"loud": True}
    assert read(policy, [{"prompt": CHAT}]) == [loud]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"prompt": "Text", "tools": TOOLS}, "to be messages, because a chat template presents the tools"),
        ({"prompt": "Text", "chat_template_kwargs": {"loud": 1}}, "because a chat template reads loud"),
        ({"prompt": CHAT, "chat_template_kwargs": {"enable_thinking": False}}, "knows no 'enable_thinking'"),
        ({"prompt": CHAT, "image": WHITE}, r"column 'image' or 'images'.* VisionLanguagePolicy"),
    ],
)
def test_what_no_template_can_write_is_refused(policy, columns, problem):
    with pytest.raises(UserError, match=problem):
        read(policy, [columns])


@pytest.mark.parametrize("columns", [{"tools": [TOOLS]}, {"chat_template_kwargs": [{"loud": 1}]}])
def test_conversations_refuse_columns_that_replies_would_not_follow(policy, columns):
    prompts = chats(1)
    prompts.columns |= columns
    with pytest.raises(UserError, match=f"without the column '{next(iter(columns))}'"):
        ConversationSampler(64, [add]).rollout(policy, prompts, 2, noise_for(prompts))


# --- calls in one form


def said(text, role="assistant", **more):
    return {"role": role, "content": text, **more}


def talk(name, arguments):
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return [said("", tool_calls=[call]), said("7", "tool", name=name), said("7")]


OBJECTS = [("add", {"a": 3, "b": 4}), ("look_up", {"name": "Ann"}), ("nest", {"deep": {"left": [{"x": 2}]}})]
FORMS = {
    "rows": lambda rows, path: rows,
    "a Dataset": lambda rows, path: datasets.Dataset.from_list(rows),
    "Parquet": lambda rows, path: (datasets.Dataset.from_list(rows).to_parquet(path), str(path))[1],
    "pandas": lambda rows, path: pandas.DataFrame(rows).to_dict("records"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("place", ["prompt", "completion"])
def test_calls_are_those_of_json_lines_with_objects(policy, tmp_path, form, as_text, place):
    def rows(write):
        chats = [talk(name, write(arguments)) for name, arguments in OBJECTS]
        if place == "prompt":
            return [{"prompt": [*CHAT, *chat], "completion": "7"} for chat in chats]
        return [{"prompt": CHAT, "completion": chat} for chat in chats]

    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows(dict)))
    given = FORMS[form](rows(json.dumps if as_text else dict), tmp_path / "a.parquet")
    expected, ours = (demonstration_rollouts(policy, groups_of(each)) for each in (str(tmp_path / "a.jsonl"), given))
    assert torch.equal(expected.actions, ours.actions) and torch.equal(expected.mask, ours.mask)
    assert torch.equal(expected.inputs["prompt_ids"], ours.inputs["prompt_ids"])
    text = policy.tokenizer.decode((expected.inputs["prompt_ids"] if place == "prompt" else expected.actions[:, 0])[1])
    assert '{"name": "look_up", "arguments": {"name": "Ann"}}' in text


def test_a_null_that_was_written_stays(policy, tmp_path):
    """In lines of JSON, and in arguments as text, null is a value."""
    for arguments in ({"a": None}, '{"a": null}'):
        (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": CHAT, "completion": talk("add", arguments)}))
        made = demonstration_rollouts(policy, groups_of(str(tmp_path / "a.jsonl")))
        assert '"arguments": {"a": null}' in policy.tokenizer.decode(made.actions[0, 0])


@pytest.mark.parametrize("arguments", ["{", "[1]", "seven"])
def test_arguments_that_are_no_object_are_named(tmp_path, arguments):
    row = {"prompt": CHAT, "completion": talk("add", arguments)}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    with pytest.raises(RecordError, match=r"a\.jsonl:1: Expected the arguments of a call to be an object"):
        groups_of(str(tmp_path / "a.jsonl"))


# --- the end of a turn

BARE = "{%- for message in messages %}{{- '\\n' + message['role'] + ': ' + message['content'] }}{%- endfor %}"
TWO = CHAT_TEMPLATE.replace("<|im_end|>\\n' }}\n{%- endfor %}", "</answer><|im_end|>' }}\n{%- endfor %}")
NO_END = "to end written turns with a stop token"
ENDS_LATER = CHAT_TEMPLATE + "{%- if not add_generation_prompt %}{{- '<|endoftext|>' }}{%- endif %}"


@pytest.mark.parametrize(
    ("template", "stops", "end"),
    [
        (CHAT_TEMPLATE, ["<|endoftext|>"], "<|im_end|>"),
        (CHAT_TEMPLATE, ["<|endoftext|>", "<|im_end|>"], "<|im_end|>"),
        (TWO, ["<|endoftext|>"], "<|im_end|>"),
        (ENDS_LATER, ["<|endoftext|>"], "<|im_end|>"),
        (CHAT_TEMPLATE.replace("im_end", "endoftext"), ["<|endoftext|>"], "<|endoftext|>"),
        (BARE, ["<|endoftext|>"], None),
        (None, ["<|endoftext|>"], None),
        ("{{ raise_exception('no') }}", ["<|endoftext|>"], None),
    ],
)
def test_the_end_of_a_turn_is_found_by_rendering(policy, template, stops, end):
    policy.tokenizer.chat_template = template
    found = end_of_turn(policy.tokenizer, {}, policy.tokenizer.convert_tokens_to_ids(stops))
    assert found == (None if end is None else policy.tokenizer.convert_tokens_to_ids(end))


@pytest.fixture
def based(directory, tmp_path):
    """A base model, whose files name <|endoftext|> alone."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(directory), AutoTokenizer.from_pretrained(directory)
    tokenizer.eos_token = "<|endoftext|>"
    model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.eos_token_id
    return model, tokenizer


COMPLETIONS = [
    "7",
    [said("7")],
    [said("7"), said("Sure?", "user"), said("Yes")],
    talk("add", {"a": 3}),
]


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_a_base_models_demonstrations_end_as_its_template_ends_turns(based, directory, completion):
    """They are those of the chat model, whose files name the end."""
    policy, tuned = CausalLMPolicy.from_model(*based), loaded(directory)
    groups = groups_of([{"prompt": CHAT, "completion": completion}])
    ours, theirs = demonstration_rollouts(policy, groups), demonstration_rollouts(tuned, groups)
    assert torch.equal(ours.actions, theirs.actions) and torch.equal(ours.mask, theirs.mask)
    assert int(ours.actions[0, 0, -1]) == policy.turn_end and policy.turn_end in policy.stop_tokens


def test_a_base_models_sampled_answers_stop_at_the_end_of_a_turn(based):
    policy = CausalLMPolicy.from_model(*based)
    with torch.no_grad():
        policy.network.get_input_embeddings().weight[policy.turn_end] *= 6  # likely now
    prompts = chats(2)
    rollouts = GenerationSampler(40).rollout(policy, prompts, 8, noise_for(prompts))
    rows = zip(rollouts.actions.flatten(0, 1).tolist(), rollouts.lengths.flatten().tolist(), strict=True)
    ended = [(row, length) for row, length in rows if policy.turn_end in row[:length]]
    assert ended and all(row.index(policy.turn_end) == length - 1 for row, length in ended)


def test_an_exported_base_model_ends_as_it_was_trained_to(based, tmp_path):
    policy = CausalLMPolicy.from_model(*based)
    policy.save_pretrained(tmp_path / "out")
    config = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert sorted(config["eos_token_id"]) == list(policy.stop_tokens)


@pytest.mark.parametrize(
    ("template", "completion", "problem"),
    [
        (BARE + "{{ '\\nassistant: ' if add_generation_prompt }}", [said("7")], NO_END),
        (CHAT_TEMPLATE.replace("<|im_end|>", ""), [said("7")], NO_END),
        (CHAT_TEMPLATE.replace("<|im_end|>", "##"), [said("7")], NO_END),
        (CHAT_TEMPLATE.replace("message['tool_calls'] or []", "[]"), talk("add", {"a": 3}), r"drops .*dummy_name"),
    ],
)
def test_demonstrations_that_a_template_leaves_open_or_drops_are_refused(policy, template, completion, problem):
    policy.tokenizer.chat_template = template
    with pytest.raises(UserError, match=problem):
        demonstration_rollouts(policy, groups_of([{"prompt": CHAT, "completion": completion}]))


# --- what a template drops

USERS_ALONE = CHAT_TEMPLATE.replace("for message in messages", "for message in messages if message['role'] != 'system'")
LAST_ALONE = CHAT_TEMPLATE.replace("for message in messages", "for message in messages[-1:]")
FIRST_LETTERS = CHAT_TEMPLATE.replace("message['content'] }}", "message['content'][:3] }}")
NO_TOOLS = CHAT_TEMPLATE.replace("{%- if tools %}", "{%- if false %}")
NO_QUESTION = r"write the message of the user, but it drops 'What color\?'"
KIND = {"system_prompt": "Be kind."}
NO_SYSTEM = r"write the message of the system \(data\.system_prompt, .* drops 'Be kind\.'"


@pytest.mark.parametrize(
    ("template", "rows", "options", "problem"),
    [
        (USERS_ALONE, [{"prompt": "Hi"}], KIND, NO_SYSTEM),
        (LAST_ALONE, [{"prompt": "Hi"}], KIND, NO_SYSTEM),
        (FIRST_LETTERS, [{"prompt": "Hi"}], KIND, NO_SYSTEM),
        (USERS_ALONE, [{"prompt": CHAT}, {"prompt": [said("Be kind.", "system"), *CHAT]}], {}, "message of the system"),
        (LAST_ALONE, [{"prompt": [*CHAT, said("Red."), said("Sure?", "user")]}], {}, NO_QUESTION),
        (NO_TOOLS, [{"prompt": CHAT, "tools": TOOLS}], {}, "to write the tools, but it drops 'add'"),
    ],
)
def test_a_dropped_message_or_tool_is_refused(policy, template, rows, options, problem):
    policy.tokenizer.chat_template = template
    with pytest.raises(UserError, match=problem):
        read(policy, rows, **options)


@pytest.mark.parametrize("content", ["  Be kind.\n", "Be\n  kind.", "Sei freundlich. ☺"])
def test_spaces_that_a_template_strips_are_not_missed(policy, content):
    policy.tokenizer.chat_template = CHAT_TEMPLATE.replace("message['content'] }}", "message['content'] | trim }}")
    (text,) = read(policy, [{"prompt": "Hi"}], system_prompt=content)
    assert content.strip() in text


# --- the date

DATED = "{{- 'Today is ' + strftime_now('%Y-%m-%d') + '\\n' }}" + CHAT_TEMPLATE
ASKED = "{{- 'Today is ' + (date_string or strftime_now('%d %b %Y')) + '\\n' }}" + CHAT_TEMPLATE
WITH_TOOLS = CHAT_TEMPLATE.replace("{%- if tools %}", "{%- if tools %}{{- strftime_now('%d %b') }}")
UNUSED = "{%- if false %}{{- strftime_now('%Y') }}{%- endif %}" + CHAT_TEMPLATE
COMPUTED = "{{- strftime_now('%Y') | int - 2000 }}{{ strftime_now('%m')[1] }}" + CHAT_TEMPLATE


def on(monkeypatch, day):
    class Date(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 11, day, 12)

    monkeypatch.setattr(template_utils, "datetime", Date)


@pytest.mark.parametrize(
    ("template", "options", "dated"),
    [
        (DATED, {}, True),
        (ASKED, {}, True),
        (ASKED, {"date_string": "26 Jul 2024"}, False),
        (WITH_TOOLS, {}, False),
        (WITH_TOOLS, {"tools": TOOLS}, True),
        (UNUSED, {}, False),
        (COMPUTED, {}, True),
        (CHAT_TEMPLATE, {}, False),
    ],
)
def test_a_template_that_writes_the_date_is_told(policy, monkeypatch, recwarn, template, options, dated):
    """Told once, and the manifest of a resume on another day differs."""
    policy.tokenizer.chat_template = template
    options = dict(options)
    tools = options.pop("tools", [])
    policy.chat_template_kwargs = options
    for _ in range(2):
        policy.read_prompts([CHAT], tools=tools)
    assert sum("writes today's date" in str(warning.message) for warning in recwarn) == dated
    module = type("Module", (), {"policy": policy, "sampler": type("Sampler", (), {"tools": tools})})
    manifests = []
    for day in (27, 28):
        on(monkeypatch, day)
        manifests.append(Manifest({}, rendered=_chat_fingerprints(module)))
    lines = differences(*manifests)
    moved = dated and template is not COMPUTED  # whose text is the month's
    assert lines == ["a chat reads otherwise: its chat template writes the date, or differs"] * moved
    assert manifests[0].name == manifests[1].name  # a run's identity is what it was before
