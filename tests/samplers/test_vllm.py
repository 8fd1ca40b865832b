"""The contract with vLLM, held against a fake server that speaks what it documents."""

import base64
import copy
import math
import os
import pickle
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from lightning_cgrpo import ConstrainedGRPO, Constraint, FunctionTask, Objective, Optimization, json_client
from lightning_cgrpo.datamodules import PromptDataModule
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.pretrained import LoRA
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.randomness import Stream, uniform
from lightning_cgrpo.rollout import prompt_tokens, read
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.generation import GenerationSampler
from lightning_cgrpo.samplers.vllm import ipc_push, server
from lightning_cgrpo.samplers.vllm.folder_push import FolderPush
from lightning_cgrpo.samplers.vllm.ipc_push import IPCPush
from lightning_cgrpo.samplers.vllm.nccl_push import NCCLPush
from lightning_cgrpo.samplers.vllm.server import VLLMServer
from lightning_cgrpo.samplers.vllm.weights import version
from tests.forked import server as server_of_processes
from tests.memory import Memory
from tests.quiet import quiet_trainer
from tests.samplers.fake_transfer import BroadcastWorker, DistantWorker, FilePush, GlooPush
from tests.samplers.fake_vllm import FakeServer

TEXTS = ["How many apples are left?", "Tom", "Anna reads 12 pages every day."]
GROUP_SIZE = 3
LENGTH = 8
REAL = "LIGHTNING_CGRPO_VLLM"
"""Names the address of a real server, for one more test, and with _PUSH the push."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", hidden_size=32, layers=1, context_length=256)


def make_policy(directory, **options):
    """Peaked enough that answers differ in length, with many stop tokens."""
    policy = CausalLMPolicy(str(directory), temperature=0.8, **options)
    policy.load()
    with torch.no_grad():
        policy.model.get_input_embeddings().weight.mul_(6)
    policy.stop_tokens = tuple(sorted({*policy.stop_tokens, *range(40, 100)}))
    return policy


@pytest.fixture
def policy(directory):
    return make_policy(directory)


WAYS = {"folder": (None, FolderPush), "nccl": ("nccl", GlooPush), "ipc": ("ipc", FilePush)}
"""A server's backend, and the push."""


@pytest.fixture
def way(request):
    return getattr(request, "param", "folder")


every_way = pytest.mark.parametrize("way", WAYS, indirect=True)


@pytest.fixture
def serve():
    """Starts servers that end with the test."""
    started = []

    def server(*arguments, **options):
        started.append(FakeServer(*arguments, **options))
        return started[-1]

    yield server
    for fake in started:
        fake.shutdown()
        fake.server_close()


@pytest.fixture
def served(directory, way, serve):
    """A server with the model as it was before."""
    return serve(directory, backend=WAYS[way][0])


@pytest.fixture
def engine(served, way):
    return VLLMServer(served.address, WAYS[way][1]())


def draws(update=0, rows=(0, 1, 2), group_size=GROUP_SIZE, length=LENGTH):
    return uniform(0, Stream.ROLLOUT, update, torch.tensor(rows), (group_size, length))


def generate(engine, policy, sampling=None, rows=(0, 1, 2), update=0):
    prompts = policy.read_prompts([TEXTS[row] for row in rows])
    return engine.generate(policy, prompts, GROUP_SIZE, sampling or Sampling(LENGTH), draws(update, rows))


def log_probs_of(policy, rollouts):
    with torch.no_grad():
        return policy(policy.examples(rollouts)).log_probs.view(rollouts.mask.shape)


def change(policy, by=1e-3):
    with torch.no_grad():
        policy.model.model.norm.weight.add_(by)


def test_answers_are_sampled_from_the_policy(engine, policy):
    with torch.inference_mode():
        made = generate(engine, policy)
    assert made.actions.shape == made.mask.shape == made.sampling_log_probs.shape == (3, GROUP_SIZE, LENGTH)
    # The weights are the policy's, the temperature is, and the log-probabilities say so.
    exact = log_probs_of(policy, made)
    torch.testing.assert_close(made.sampling_log_probs[made.mask], exact[made.mask], rtol=0, atol=1e-4)
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

    def reply(rows, turns, room):
        rooms.append(room)
        return [[50 + rows[0], 7] if room >= 2 and rows[0] % 3 else [] for _ in turns]

    prompts = policy.read_prompts(TEXTS)
    made = engine.generate(policy, prompts, GROUP_SIZE, Sampling(length), draws(length=length), reply=reply)
    exact = log_probs_of(policy, made)
    torch.testing.assert_close(made.sampling_log_probs[made.mask], exact[made.mask], rtol=0, atol=1e-4)
    assert (made.sampling_log_probs[~made.mask] == 0).all()
    tokens, own = made.actions.flatten(0, 1), made.mask.flatten(0, 1)
    for row, (answer, mine) in enumerate(zip(tokens, own, strict=True)):
        given = answer[read(mine) & ~mine].tolist()
        assert given == [50 + row, 7] * (len(given) // 2) and (row % 3 or not given)
        # Each request had exactly the tokens before its turn, and room for the rest.
        starts = [0, *[at + 1 for at in range(length - 1) if not mine[at] and mine[at + 1]]]
        prompt = prompt_tokens(prompts)[row // GROUP_SIZE]
        asked = [body for body, at in served.asked if at in [prompt + answer[:start].tolist() for start in starts]]
        assert len({body["seed"] for body in asked}) == len(asked) >= len(starts)
        assert {body["max_tokens"] for body in asked} >= {length - start for start in starts}
    assert own.sum(-1).lt(read(own).sum(-1)).sum() > 3, "or this would say little"
    ended = torch.isin(tokens.gather(-1, read(own).sum(-1, keepdim=True) - 1)[:, 0], torch.tensor(policy.stop_tokens))
    assert torch.equal(made.info["truncated"].flatten(), ~ended) and min(rooms) >= 0
    again = engine.generate(policy, prompts, GROUP_SIZE, Sampling(length), draws(length=length), reply=reply)
    assert torch.equal(again.actions, made.actions)


def test_filters_and_lengths(engine, policy):
    likeliest = generate(engine, policy, Sampling(LENGTH, top_k=1))
    assert (likeliest.sampling_log_probs == 0).all() and (likeliest.actions == likeliest.actions[:, :1]).all()
    assert torch.equal(generate(engine, policy, Sampling(LENGTH, min_p=1.0)).actions, likeliest.actions)
    assert torch.equal(generate(engine, policy, Sampling(LENGTH, top_p=1e-6)).actions, likeliest.actions)
    # The stop token counts: an answer of that many tokens may end in one.
    for least in (1, 3):
        lengths = generate(engine, policy, Sampling(LENGTH, min_new_tokens=least)).mask.sum(-1)
        assert lengths.min() == least


@every_way
def test_weights_are_pushed_once_per_change(engine, served, policy, tmp_path):
    engine.push.folder = tmp_path
    generate(engine, policy)
    for changes in range(1, 4):
        if changes == 3:  # behind the back of the version counters, as averaged weights are swapped in
            policy.model.model.norm.weight.data.mul_(1.01)
        else:
            change(policy)
        generate(engine, policy)
        generate(engine, policy, update=1)
        assert served.pushes() == served.engine.log.count("reset") == 1 + changes
        held = served.engine.model.state_dict()
        assert all(torch.equal(held[name], value) for name, value in policy.model.state_dict().items())
    assert list(tmp_path.iterdir()) == [], "no checkpoint is left"


@every_way
def test_adapters_are_merged(engine, served, directory):
    policy = make_policy(directory, lora=LoRA(rank=2))
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(len(name)))
    made = generate(engine, policy)
    exact = log_probs_of(policy, made)
    torch.testing.assert_close(made.sampling_log_probs[made.mask], exact[made.mask], rtol=0, atol=1e-4)
    merged = copy.deepcopy(policy.model).merge_and_unload().state_dict()
    held = served.engine.model.state_dict()
    assert held.keys() == merged.keys() and all(torch.equal(held[name], merged[name]) for name in merged)
    assert any("lora" in name for name, _ in policy.model.named_parameters()), "the policy keeps them"


def test_the_server_knows_the_weights(served, policy):
    """Whoever comes with the same weights finds them there, and with others pushes them."""
    generate(VLLMServer(served.address), policy)
    assert served.version == version(policy)
    generate(VLLMServer(served.address), policy)
    assert served.pushes() == 1
    other = copy.deepcopy(policy)
    change(other)
    generate(VLLMServer(served.address), other)
    assert served.pushes() == 2 and served.version == version(other) != version(policy)


def test_a_failed_push_is_not_taken_for_done(served, policy):
    served.holds_cache = True
    with pytest.raises(UserError, match=r"no other requests, but got some that keep its cache"):
        generate(VLLMServer(served.address), policy)
    assert served.version == "incomplete"
    served.holds_cache = False
    generate(VLLMServer(served.address), policy)
    assert served.pushes() == 2


def test_weights_that_do_not_arrive_are_noticed(engine, served, policy):
    """The weights of one update before differ too little for the check, but the server's are zeros by then."""
    generate(engine, policy)
    served.engine.reload_weights = lambda weights_path: None
    change(policy, 1e-6)
    with pytest.raises(UserError, match=r"log-probabilities that differ by .* per token after the weights were pushed"):
        generate(engine, policy)
    assert served.version == "incomplete"


def test_an_output_layer_that_is_not_pushed_is_noticed(engine, served, policy):
    """A copy of a tied layer, as in vLLM's CPU kernels: zeros do not reach it, and the gap is far below half a nat."""
    generate(engine, policy)
    model, reload_weights, zero = served.engine.model, served.engine.reload_weights, served.engine.zero
    head = copy.deepcopy(model.lm_head.weight)

    def without_head(function):
        def call(*args, **kwargs):
            function(*args, **kwargs)
            model.lm_head.weight = copy.deepcopy(head)

        return call

    served.engine.reload_weights, served.engine.zero = without_head(reload_weights), without_head(zero)
    change(policy, 1e-3)
    generate(engine, policy)
    with torch.no_grad():
        policy.model.get_input_embeddings().weight.mul_(1.05)
    with pytest.raises(UserError, match=r"a layer keeps its old weights.*tie_word_embeddings is false"):
        generate(engine, policy)
    assert served.version == "incomplete"


def test_a_server_of_another_dtype_is_named(served, policy):
    served.engine.faulty = lambda tokens, log_probs, reason: (
        tokens,
        [value and value - 0.02 for value in log_probs],
        reason,
    )
    with pytest.warns(UserWarning, match="differ by 0.02 per token .* --dtype float32"):
        generate(VLLMServer(served.address), policy, rows=(0,))


def test_known_faults_of_servers_come_with_a_remedy(served, policy):
    def reload_weights(weights_path):
        raise RuntimeError("Call to collective_rpc method failed: shapes")

    served.engine.reload_weights = reload_weights
    with pytest.raises(UserError, match="serving the policy's model") as error:
        generate(VLLMServer(served.address), policy, rows=(0,))
    assert str(error.value).isprintable()


@pytest.mark.parametrize("way", ["nccl", "ipc"], indirect=True)
def test_a_refused_update_does_not_hang(engine, served, policy):
    generate(engine, policy)
    served.engine.updating = True
    change(policy)
    with pytest.raises(UserError, match=r"start_weight_update to accept the request, but got 500 .*already active"):
        generate(engine, policy)
    served.engine.updating = False
    served.engine.start_weight_update = lambda: None
    with pytest.raises(UserError, match=r"update_weights to accept the request, but got 500"):
        generate(engine, policy)
    del served.engine.start_weight_update
    generate(engine, policy)  # by a new group
    assert served.pushes() == 2 and served.version == version(policy)


def test_a_push_needs_its_device(served, policy):
    for push in (NCCLPush(), IPCPush()):
        with pytest.raises(UserError, match=rf"on a GPU.* for {type(push).__name__}, but got cpu, try FolderPush\.$"):
            generate(VLLMServer(served.address, push), policy)


def test_the_id_of_a_group_is_torch_s():
    """By the rendezvous of vLLM's example; the fake worker checks its form before it fails for want of NCCL."""
    store, opened = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False), Future()
    threading.Timer(0.1, store.set, ("0", bytes(range(128)))).start()
    info = NCCLPush()._rendezvous(store, opened)
    assert info.keys() == {"nccl_unique_id_b64"} and base64.b64decode(*info.values()) == bytes(range(128))
    with pytest.raises(RuntimeError, match="unique-id rendezvous"):
        BroadcastWorker().init(1, 2, packed=False, **info)
    opened.set_exception(ConnectionError("no NCCL"))
    with pytest.raises(ConnectionError, match="no NCCL"):
        NCCLPush()._rendezvous(dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False), opened)


def test_each_gpu_has_its_own_handles(policy, monkeypatch):
    """Two processes, on two GPUs: a worker finds the handles of its GPU."""
    sent = []
    monkeypatch.setattr(ipc_push, "gathered", lambda mine: [mine, ("GPU-1", [("other", *h[1:]) for h in mine[1]])])
    with FilePush().prepared(policy) as send:
        send(SimpleNamespace(post=lambda path, body: sent.append((path, body))))
    paths, bodies = zip(*sent, strict=True)
    assert paths == (
        "/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update",
    )  # fmt: skip
    handles = pickle.loads(base64.b64decode(bodies[2]["update_info"]["ipc_handles_pickled"]))
    assert all(handle.keys() == {"GPU-0", "GPU-1"} and handle["GPU-1"][0] == "other" for handle in handles)
    assert len(handles) == len(bodies[2]["update_info"]["names"]) > 10


@pytest.mark.slow
def test_two_workers_in_other_processes_receive_equal_weights(directory, policy, serve):
    workers = [DistantWorker(number, server_of_processes().Process) for number in range(2)]
    fake = serve(directory, backend=workers)
    engine = VLLMServer(fake.address, GlooPush())
    for _ in range(2):
        change(policy)
        generate(engine, policy)
        held = fake.engine.model.state_dict()
        assert all(torch.equal(held[name], value) for name, value in policy.model.state_dict().items())
    for worker in workers:
        worker.close()


@every_way
def test_a_server_on_the_same_gpu_sleeps_between_rollouts(directory, serve, served, policy, way, monkeypatch):
    backend, push = WAYS[way]
    fake, emptied = serve(directory, sleep_mode=True, backend=backend), []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(len(fake.engine.log)))
    engine = VLLMServer(fake.address, push(), sleeps=True)
    awake = VLLMServer(served.address, push())
    for update in range(2):  # the second time with the same weights, which the server has dropped
        made, expected = (generate(one, policy, update=update) for one in (engine, awake))
        assert torch.equal(made.actions, expected.actions) and torch.equal(
            made.sampling_log_probs, expected.sampling_log_probs
        )
        assert fake.engine.asleep == {"weights", "kv_cache"} and fake.version == "incomplete"
    first = ["wake weights", "reload", "reset", "wake kv_cache", "sleep"]
    assert fake.engine.log == [*first, first[0], "zero", *first[1:]]
    assert emptied == [0, 0, 5, 5], "before the weights are prepared, and before the server wakes"


def test_a_server_that_can_t_sleep(served, policy):
    with pytest.raises(UserError, match=r"to sleep while the policy trains, .* --enable-sleep-mode\.$"):
        generate(VLLMServer(served.address, sleeps=True), policy)


def test_the_first_process_pushes(served, policy, monkeypatch):
    waited = []
    monkeypatch.setattr(server, "world", lambda: (1, 2))
    monkeypatch.setattr(server, "all_sum", lambda tensor: waited.append(served.pushes()) or 2 * tensor)
    second = VLLMServer(served.address)
    with pytest.raises(UserError, match="keep the weights"):  # nobody pushed them
        generate(second, policy)
    assert waited == [0] and served.pushes() == 0  # whether there is a push
    monkeypatch.setattr(server, "world", lambda: (0, 2))
    generate(VLLMServer(served.address), policy)
    generate(second, policy)
    assert waited == [0, 0, 1, 1] and served.pushes() == 1  # that there is; what it sent has arrived; it is checked


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
    with pytest.raises(UserError, match=message) as caught:
        VLLMServer(fake.address).generate(
            policy, policy.padded([[5] * 30]), GROUP_SIZE, Sampling(LENGTH), draws(rows=(0,))
        )
    assert "\n" not in str(caught.value)


def test_another_model_is_noticed(tmp_path, serve, policy):
    """With more layers than the checkpoint it takes the weights without a word."""
    deeper = make_tiny_model(tmp_path / "deeper", hidden_size=32, layers=4, context_length=256)
    fake = serve(deeper)
    with torch.no_grad():
        for parameter in fake.engine.model.model.layers[3].mlp.parameters():
            parameter.mul_(50)
    with pytest.raises(UserError, match=r"log-probabilities that differ by .* per token .* serving the policy's model"):
        generate(VLLMServer(fake.address), policy, rows=(0,))
    assert fake.version == "incomplete"


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


def test_diverged_weights(engine, policy):
    change(policy, math.nan)
    with pytest.raises(FloatingPointError, match=r"finite weights in .*NaN or infinity in model\.norm\.weight"):
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


@pytest.mark.skipif(REAL not in os.environ, reason=f"no address in {REAL}, see docs/vllm.md")
def test_a_real_server():
    """Started in float32 with a directory that is seen here, too."""
    pushes = {push.__name__: push for push in (FolderPush, NCCLPush, IPCPush, GlooPush, FilePush)}
    engine = VLLMServer(os.environ[REAL], pushes[os.environ.get(f"{REAL}_PUSH", "FolderPush")]())
    policy = CausalLMPolicy(engine.client.get("/v1/models")["data"][0]["root"], temperature=0.8)
    with torch.device("cuda" if isinstance(engine.push, (NCCLPush, IPCPush)) and torch.cuda.is_available() else "cpu"):
        policy.load()
    for change_by in (0.0, 0.1, 0.1):
        change(policy, change_by)
        made, again, other = (generate(engine, policy, update=update) for update in (0, 0, 1))
        exact = log_probs_of(policy, made)
        torch.testing.assert_close(made.sampling_log_probs[made.mask], exact[made.mask], rtol=0, atol=1e-3)
        assert torch.equal(made.actions, again.actions) and not torch.equal(made.actions, other.actions)
    assert generate(engine, policy, Sampling(LENGTH, min_new_tokens=LENGTH)).mask.all()
    assert (generate(engine, policy, Sampling(LENGTH, top_k=1)).sampling_log_probs == 0).all()


def long(completions, **_):
    return [float(len(text)) for text in completions]


def test_training(directory, served, tmp_path):
    """Two updates: each one's answers come from the weights that the one before made."""
    (tmp_path / "prompts.jsonl").write_text("".join(f'{{"prompt": "{text}"}}\n' for text in TEXTS))
    module = ConstrainedGRPO(
        policy=make_policy(directory),
        sampler=GenerationSampler(LENGTH, engine=VLLMServer(served.address)),
        task=FunctionTask({"long": long}),
        objective=Objective("long", {"truncated": Constraint(at_most=0.5, role="monitor")}),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        group_size=GROUP_SIZE,
        optimization=Optimization(minibatch_size=5),
    )
    record, prompts = Memory(), PromptDataModule(str(tmp_path / "prompts.jsonl"), prompts_per_update=3)
    quiet_trainer(record, logger=record, max_steps=2).fit(module, prompts)
    gaps = [metrics["sampling/log_prob_gap"] for metrics in record.metrics if "sampling/log_prob_gap" in metrics]
    assert len(gaps) == 2 and all(gap < 1e-4 for gap in gaps)
    assert served.pushes() == 2 and served.version != version(module.policy), "the last update's nobody asked for"
