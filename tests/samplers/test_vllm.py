"""The contract with vLLM, held against a fake server that speaks what it documents."""

import math
from contextlib import nullcontext

import pytest
import torch

from lightning_cgrpo import Constraint, FunctionTask, Objective, Optimization
from lightning_cgrpo.core import json_client
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import Rollouts, prompt_tokens, read_steps
from lightning_cgrpo.datamodules import PromptDataModule
from lightning_cgrpo.samplers.conversation.turns import converse
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.generation import GenerationSampler
from lightning_cgrpo.samplers.vllm.requests import Turn, check_informative
from lightning_cgrpo.samplers.vllm.server import VLLMServer
from lightning_cgrpo.samplers.vllm.weights import GROWTH, OTHER_DTYPE, TOLERANCE, check_agreement, weights_version
from tests.grids import grid_module
from tests.memory import Memory
from tests.quiet import quiet_trainer
from tests.samplers.vllm_client import GROUP_SIZE, LENGTH, TEXTS, check_log_probs, draws, generate, make_policy


def test_answers_are_sampled_from_the_policy(engine, policy):
    with torch.inference_mode():
        made = generate(engine, policy)
    assert made.actions.shape == made.mask.shape == made.sampling_log_probs.shape == (3, GROUP_SIZE, LENGTH)
    # The weights are the policy's, the temperature is, and the log-probabilities say so.
    check_log_probs(policy, made)
    lengths = made.mask.sum(-1)
    assert torch.equal(made.mask, torch.arange(LENGTH) < lengths[..., None]) and (lengths >= 1).all()
    is_stop = torch.isin(made.actions, torch.tensor(policy.stop_tokens)) & made.mask
    assert torch.equal(made.info["truncated"], ~is_stop.any(-1)) and (lengths[made.info["truncated"]] == LENGTH).all()
    assert torch.equal(is_stop.any(-1), is_stop.gather(-1, lengths[..., None] - 1)[..., 0])
    assert made.info["truncated"].any() and (~made.info["truncated"]).any(), "or this would say little"


def test_an_answer_depends_on_its_draw_alone(engine, policy):
    first, again, other = (generate(engine, policy, update=update) for update in (0, 0, 1))
    assert torch.equal(first.actions, again.actions) and torch.equal(first.sampling_log_probs, again.sampling_log_probs)
    assert not torch.equal(first.actions, other.actions)
    assert not torch.equal(first.actions[0, 0], first.actions[0, 1])
    reordered = generate(engine, policy, rows=(2, 0))
    assert torch.equal(reordered.actions, first.actions[[2, 0]])
    none = generate(engine, policy, rows=())
    assert none.actions.shape == none.mask.shape == none.sampling_log_probs.shape == (0, GROUP_SIZE, LENGTH)
    assert none.info["truncated"].shape == (0, GROUP_SIZE)


def test_turns_continue_their_own_tokens(engine, served, policy):
    length, rooms = 24, []

    def reply(row, turn, room):
        rooms.append(room)
        return [50 + row, 7] if room >= 2 and row % 3 else []

    def conversed():
        with engine.session(policy):
            return converse(engine, policy, prompts, GROUP_SIZE, Sampling(length), draws(length=length), reply)

    prompts = policy.read_prompts(TEXTS)
    made = conversed()
    check_log_probs(policy, made)
    assert (made.sampling_log_probs[~made.mask] == 0).all()
    tokens, own = made.actions.flatten(0, 1), made.mask.flatten(0, 1)
    for row, (answer, mine) in enumerate(zip(tokens, own, strict=True)):
        given = answer[read_steps(mine) & ~mine].tolist()
        assert given == [50 + row, 7] * (len(given) // 2) and (row % 3 or not given)
        # Each request had exactly the tokens before its turn, and room for the rest.
        starts = [0, *[at + 1 for at in range(length - 1) if not mine[at] and mine[at + 1]]]
        prompt = prompt_tokens(prompts)[row // GROUP_SIZE]
        asked = [body for body, at in served.asked if at in [prompt + answer[:start].tolist() for start in starts]]
        assert len({body["seed"] for body in asked}) == len(asked) >= len(starts)
        assert {body["max_tokens"] for body in asked} >= {length - start for start in starts}
    assert own.sum(-1).lt(read_steps(own).sum(-1)).sum() > 3, "or this would say little"
    ended = torch.isin(
        tokens.gather(-1, read_steps(own).sum(-1, keepdim=True) - 1)[:, 0], torch.tensor(policy.stop_tokens)
    )
    assert torch.equal(made.info["truncated"].flatten(), ~ended) and min(rooms) >= 0
    again = conversed()
    assert torch.equal(again.actions, made.actions)


def test_filters_and_lengths(engine, policy):
    filters = ({"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-6})
    likeliest, *others = (generate(engine, policy, Sampling(LENGTH, **kept), rows=(0,)) for kept in filters)
    assert (likeliest.sampling_log_probs == 0).all() and (likeliest.actions == likeliest.actions[:, :1]).all()
    assert all(torch.equal(other.actions, likeliest.actions) for other in others)
    # The stop token counts: an answer of that many tokens may end in one.
    for least in (1, 3):
        lengths = generate(engine, policy, Sampling(LENGTH, min_new_tokens=least)).mask.sum(-1)
        assert lengths.min() == least


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logprobs_mode": "raw_logprobs"}, r"what it samples from, .*--logprobs-mode processed_logprobs\.$"),
        ({"dev_mode": False}, r"weight_info to accept the request, but got 404 .*try VLLM_SERVER_DEV_MODE=1"),
        ({"room": 33}, r"room for answers of 8 tokens, but got an answer cut after 3, .*larger max_model_len"),
        ({"room": 30}, r"to accept the request, but got 400 \(The prompt is too long\)\.$"),
    ],
)
def test_servers_that_do_not_fit(directory, serve, policy, options, message):
    fake = serve(directory, **options)
    policy.stop_tokens = policy.stop_tokens[:1]
    engine = VLLMServer(fake.address)
    with pytest.raises(UserError, match=message) as caught, engine.session(policy):
        engine.generate(policy, policy.padded([[5] * 30]), GROUP_SIZE, Sampling(LENGTH), draws(rows=(0,)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("faulty", "message"),
    [
        (lambda tokens, log_probs, reason: (tokens[:-1], log_probs[:-1], "stop"), "until a stop token"),
        (lambda tokens, log_probs, reason: (tokens, log_probs[1:], reason), "a log-probability for each"),
        (lambda tokens, log_probs, reason: (tokens, log_probs, "abort"), "the end 'abort'"),
        (lambda tokens, log_probs, reason: (tokens + tokens, log_probs + log_probs, reason), "at most 8 tokens"),
        (lambda tokens, log_probs, reason: ([], [], "stop"), "0 tokens"),
        (lambda tokens, log_probs, reason: (None, log_probs, reason), "a reply without them"),
        (lambda tokens, log_probs, reason: ([math.inf, *tokens[1:]], log_probs, reason), "a reply without them"),
        (lambda tokens, log_probs, reason: (tokens, [10**400, *log_probs[1:]], reason), "a reply without them"),
        (lambda tokens, log_probs, reason: ([10**6, *tokens[1:]], log_probs, reason), "but got token 1000000"),
        (lambda tokens, log_probs, reason: (tokens, [math.nan, *log_probs[1:]], reason), "but got nan"),
        (lambda tokens, log_probs, reason: (tokens, [0.5, *log_probs[1:]], reason), "but got 0.5"),
        (lambda tokens, log_probs, reason: (tokens, {}["x"], reason), r"but got 500 \(KeyError\('x'\)\)"),
    ],
)
def test_replies_that_do_not_fit(served, policy, faulty, message):
    engine = VLLMServer(served.address)
    generate(engine, policy, rows=(0,))
    served.engine.faulty = faulty
    with pytest.raises(UserError, match=message):
        generate(engine, policy, rows=(0,))


def test_weights_that_change_meanwhile(served, policy):
    engine = VLLMServer(served.address)
    generate(engine, policy, rows=(0,))
    served.version = "default"
    with pytest.raises(UserError, match=r"to keep the weights '\w{12}' .*got 'default', because it was restarted or"):
        generate(engine, policy, rows=(0,))


def test_asks_again_where_that_is_safe(served, policy, monkeypatch):
    monkeypatch.setattr(json_client, "PAUSES", (0.0, 0.0))
    engine = VLLMServer(served.address)
    expected = generate(engine, policy, rows=(0,))
    served.refusals = [503, 502]
    assert torch.equal(generate(engine, policy, rows=(0,)).actions, expected.actions)
    served.refusals = [400]
    with pytest.raises(UserError, match=r"completions to accept the request, but got 400 \(not now\)\.$"):
        generate(engine, policy, rows=(0,))


def long(completions, **_):
    return [float(len(text)) for text in completions]


@pytest.mark.parametrize("sleeps", [False, True])
def test_training(directory, serve, sleeps, monkeypatch):
    """Two updates: each one's answers come from the weights that the one before made."""
    served = serve(directory, sleep_mode=sleeps)
    monkeypatch.setattr(
        "lightning_cgrpo.samplers.vllm.server._wait_for_all", lambda policy: served.engine.log.append("meet")
    )
    monkeypatch.setattr("lightning_cgrpo.modules.rollout_module.unsharded", None)  # the push gathers, if anything
    module = grid_module(
        policy=make_policy(directory),
        sampler=GenerationSampler(LENGTH, engine=VLLMServer(served.address, sleeps=sleeps)),
        task=FunctionTask({"long": long}),
        objective=Objective("long", {"truncated": Constraint(at_most=0.5, role="monitor")}),
        group_size=GROUP_SIZE,
        optimization=Optimization(minibatch_size=5),
        lr=1e-2,
    )
    record, prompts = Memory(), PromptDataModule([{"prompt": text} for text in TEXTS], prompts_per_update=3)
    quiet_trainer(record, logger=record, max_steps=2).fit(module, prompts)
    gaps = [metrics["sampling/log_prob_gap"] for metrics in record.metrics if "sampling/log_prob_gap" in metrics]
    assert len(gaps) == 2 and all(gap < 1e-4 for gap in gaps)
    assert served.pushes() == 2 and served.version != weights_version(module.policy), (
        "the last update's nobody asked for"
    )
    assert bool(served.engine.asleep) is sleeps
    if sleeps:  # once every process has its answers, and before any trains
        assert served.engine.log[-4:] == ["meet", "meet", "sleep", "meet"]


@pytest.mark.parametrize(
    ("dtype", "first_gap", "gap", "in_float32", "told"),
    [
        ("float32", None, OTHER_DTYPE / 2, False, None),
        ("float32", None, 2 * OTHER_DTYPE, False, "another dtype"),
        ("float32", OTHER_DTYPE, 2 * OTHER_DTYPE, False, None),
        ("bfloat16", None, 2 * OTHER_DTYPE, False, None),
        ("float32", None, 2 * OTHER_DTYPE, True, "a layer keeps its old weights"),
        ("float32", OTHER_DTYPE, 2 * GROWTH * OTHER_DTYPE, False, "a layer keeps its old weights"),
        ("bfloat16", None, 2 * TOLERANCE, False, "try serving the policy's model"),
        ("float32", None, math.nan, False, "Expected finite"),
    ],
)
def test_log_probabilities_that_differ(directory, recwarn, dtype, first_gap, gap, in_float32, told):
    policy, tokens = make_policy(directory, dtype=dtype), [5, 6, 7]
    answer = policy.padded([[4]]) | {"actions": torch.tensor([[tokens]])}
    own = torch.ones(1, 1, 3, dtype=torch.bool)
    log_probs = policy(policy.examples(Rollouts(answer.pop("actions"), own, answer))).log_probs.flatten().double() + gap
    try:
        check_agreement(policy, [4], Turn(tokens, log_probs.tolist()), "server", first_gap, lambda: in_float32)
        said = [str(warning.message) for warning in recwarn if "Log-probabilities" in str(warning.message)]
    except (UserError, FloatingPointError) as error:
        said = [str(error)]
    assert len(said) == (told is not None) and all(told in text for text in said)


@pytest.mark.parametrize(
    ("log_probs", "filters", "refused"),
    [
        ([0.0] * 40, {}, True),
        ([0.0] * 40, {"top_k": 1}, False),
        ([0.0] * 40, {"top_p": 0.5}, False),
        ([0.0] * 31, {}, False),  # too few to tell
        ([0.0] * 39 + [-0.25], {}, False),
    ],
)
def test_log_probabilities_that_are_all_zero(log_probs, filters, refused):
    """Two answers; a server may begin to give zeros after the check of its first."""
    turns = [Turn([1] * len(log_probs), log_probs)] * 2
    request = {"top_k": 0, "top_p": 1.0, "min_p": 0.0} | filters
    with pytest.raises(UserError, match="but got 0 for each of 80 tokens") if refused else nullcontext():
        check_informative(turns, request, "the server")


@pytest.mark.parametrize("key", [None, "secret"])
def test_the_server_s_key_is_sent(key, monkeypatch):
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("VLLM_API_KEY", key)
    assert VLLMServer("http://localhost:8000").client._headers.get("Authorization") == (key and f"Bearer {key}")
