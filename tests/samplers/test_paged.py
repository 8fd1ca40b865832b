"""Steps of fixed shapes, with keys and values in pages: the same answers, no waits, one capture."""

import itertools
import re
from contextlib import contextmanager

import pytest
import torch

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.policies.continuation import PromptBatch
from lightning_cgrpo.policies.shared_prefix import pages, step_sizes
from lightning_cgrpo.policies.shared_prefix.step_sizes import LOGIT, StepSizes
from lightning_cgrpo.samplers import transformers_engine
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.paged_rollout import PagedRollout
from lightning_cgrpo.samplers.replayed_step import ReplayedStep
from lightning_cgrpo.samplers.transformers_engine import IN_PAGES, LOOK_EVERY, TransformersEngine
from tests.samplers.rolled import groups, noise_for, same
from tests.samplers.vllm_client import make_policy

TEXTS = [
    "Tom", "How many apples are left?", "Anna reads 12 pages every day. How many in 5 days?", "A",
    "Bob has 3 red and 4 green pens, how many pens?", "x y z",
]  # fmt: skip
PROMPTS = groups(TEXTS)
LIMITS = torch.tensor([24, 7, 24, 1, 13, 24])
GROUP_SIZE = 3


@pytest.fixture(scope="module")
def policy(two_layers):
    return make_policy(two_layers, dtype="float64")


@pytest.fixture
def paged(monkeypatch):
    """The CPU generates by pages, too."""
    monkeypatch.setattr(transformers_engine, "IN_PAGES", IN_PAGES | {"cpu"})
    monkeypatch.setattr(step_sizes, "PAGE_ELSEWHERE", 4)


def answered(policy, sampling, engine=None, limits=LIMITS):
    inputs, draws = policy.read_prompts(TEXTS), noise_for(PROMPTS)(GROUP_SIZE, sampling.max_new_tokens)
    engine = TransformersEngine() if engine is None else engine
    if engine._uses_pages(policy) and limits is not None:
        # Pages serve limits of each prompt too, though later turns of conversations take the other way.
        with torch.no_grad():
            asked = PromptBatch(inputs, inputs["prompt_mask"].sum(-1), limits, GROUP_SIZE)
            return engine._generate_in_pages(policy, asked, sampling, draws.flatten())
    return engine.generate(policy, inputs, GROUP_SIZE, sampling, draws, limits)


def test_a_step_of_a_validation_serves_training(policy, paged):
    """Lightning validates in inference mode, whose tensors nothing could write later."""
    engine, sampling = TransformersEngine(), Sampling(6)
    with torch.inference_mode():
        first = answered(policy, sampling, engine, None)
    step = engine._step
    second = answered(policy, sampling, engine, None)
    assert engine._step is step
    same(first, second)


def test_later_turns_take_no_pages(policy, paged):
    """Each turn has sizes of its own, which would need a graph each."""
    engine = TransformersEngine()
    inputs = policy.read_prompts(TEXTS)
    engine.generate(policy, inputs, 1, Sampling(6), noise_for(PROMPTS)(1, 6), LIMITS.clamp(max=6))
    assert engine._step is None


@pytest.mark.parametrize(
    ("dtype", "capability", "reads"),
    [(torch.bfloat16, (9, 0), True), (torch.float32, (9, 0), False), (torch.bfloat16, (7, 5), False)],
)
def test_pages_need_their_kernel(monkeypatch, dtype, capability, reads):
    monkeypatch.setattr(pages, "takes_pages", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert pages.kernel_reads(torch.device("cuda"), dtype) is reads
    assert pages.kernel_reads(torch.device("cpu"), torch.float32)


def leaked(engine):
    held = engine._step.pages
    return held.count - 1 - len(held.free) + sum(held._readers)


CASES = [(3, 3, 4, {"min_new_tokens": 5}), (6, 8, 16, {}), (None, 1, 4, {"repetition_penalty": 2.0})]
MANY = itertools.product(
    (None, 2, 3, 6, 9), (1, 3, 8), (4, 16), ({}, {"min_new_tokens": 5}, {"top_p": 0.9}, {"repetition_penalty": 2.0})
)


@pytest.mark.parametrize(
    ("batch_size", "look_every", "page", "options"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MANY)],
)
def test_pages_change_no_answer(policy, monkeypatch, paged, batch_size, look_every, page, options):
    sampling = Sampling(24, batch_size=batch_size, **options)
    expected = answered(policy, sampling, TransformersEngine(cuda_graphs=False))
    monkeypatch.setitem(LOOK_EVERY, "cpu", look_every)
    monkeypatch.setattr(step_sizes, "PAGE_ELSEWHERE", page)
    engine = TransformersEngine()
    same(answered(policy, sampling, engine), expected)
    assert leaked(engine) == 0 and len(expected.lengths.unique()) > 4


def test_prompts_wait_for_pages_where_memory_is_short(policy, paged, monkeypatch):
    """Down to a pool that holds a single answer, so that groups are cut."""
    sampling = Sampling(24)
    expected = answered(policy, sampling, TransformersEngine(cuda_graphs=False))
    at_once, run = [], PagedRollout._begin_waiting

    def noted(rollout):
        run(rollout)
        at_once[-1].append(len(rollout.running))

    monkeypatch.setattr(PagedRollout, "_begin_waiting", noted)
    engine = TransformersEngine()
    tokens = engine._bytes_of_a_token(policy)
    longest = int(policy.read_prompts(TEXTS)["prompt_mask"].sum(-1).max()) + 24
    for answers in (1, 4, 9):
        at_once.append([])
        engine.memory = answers * (LOGIT * len(policy.output_weight) + (longest + 4) * tokens)
        same(answered(policy, sampling, engine), expected)
        assert leaked(engine) == 0
    assert max(at_once[0]) < GROUP_SIZE < max(at_once[1]) < max(at_once[2]) < len(TEXTS) * GROUP_SIZE
    engine.memory = longest * tokens // 2
    with pytest.raises(UserError, match=r"Expected memory for the .* tokens of a prompt and its answer"):
        answered(policy, sampling, engine)


def test_sizes_hold_all_answers_or_as_many_as_fit():
    sizes = {"kind": "cuda", "prompt": 300, "answer": 500, "vocabulary": 1000, "token_bytes": 100}
    whole = StepSizes.of(answers=32, memory=None, **sizes)
    assert (whole.slots, whole.columns, whole.pages) == (32, 4, 32 * 4 + 1)
    assert StepSizes.of(answers=32, memory=2**30, **sizes) == whole
    memory = 5_000_000
    fitting = StepSizes.of(answers=512, memory=memory, **sizes)
    assert fitting.slots * LOGIT * 1000 + (fitting.pages - 1) * 256 * 100 <= memory
    assert 2 * (fitting.slots + 1) * 256 * 100 + (fitting.slots + 1) * LOGIT * 1000 > memory
    # Batches whose longest prompts differ a little have the same step.
    assert StepSizes.of(answers=512, memory=memory, **sizes | {"prompt": 400}) == fitting


def test_a_step_serves_rollouts_of_equal_sizes_with_weights_in_their_places(policy, paged):
    """Under autocast, the weights' copies are written again where they were."""
    engine = TransformersEngine()
    single = make_policy(policy.name, dtype="float32")

    def step_after(policy, half=True, **options):
        with torch.autocast("cpu", torch.bfloat16, half), engine.session(policy):
            answered(policy, Sampling(6, batch_size=6, **options), engine, LIMITS.clamp(max=6))
            return engine._step, policy.output_weight.clone()

    first, weight = step_after(single)
    with torch.no_grad():
        single.output_weight.mul_(2)
    second, doubled = step_after(single)
    assert second is first and doubled.dtype == torch.bfloat16 and torch.equal(doubled, 2 * weight)
    for other in ({"half": False}, {"top_p": 0.9}):
        assert step_after(single, **other)[0] is not first
    first, _ = step_after(policy)
    assert step_after(policy)[0] is first
    single.temperature = 2.0
    assert step_after(single)[0] is not first


def captured_by(monkeypatch, fault=None):
    """Pretend CUDA's streams and graphs; a graph raises `fault` at the end of its capture."""

    @contextmanager
    def capture(graph, **options):
        yield
        if fault is not None:
            raise fault

    class CUDAGraph:
        replays = 0

        def replay(self):
            CUDAGraph.replays += 1

    streams = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "before")
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", CUDAGraph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    return CUDAGraph, streams


@pytest.mark.parametrize("fault", [None, RuntimeError("operation not permitted when stream is capturing\nat 5")])
def test_a_step_is_captured_after_its_first_call_and_then_replayed_or_computed(monkeypatch, recwarn, fault):
    graph, streams = captured_by(monkeypatch, fault)
    calls = []
    step = ReplayedStep(lambda: calls.append(1), "cuda")
    for _ in range(5):
        step()
    assert step.captures == 1 and (len(calls), graph.replays) == ((2, 4) if fault is None else (6, 0))
    told = "one by one, because .* RuntimeError: operation not permitted when stream is capturing$"
    assert [bool(re.search(told, str(warning.message))) for warning in recwarn] == [True] * len(streams)
    assert streams == [] if fault is None else streams == ["before"]


def refuse(*arguments):
    raise RuntimeError("FlashAttention only supports Ampere GPUs\nor newer")


def gather(query, keys, values, table, seen, ends, scale):
    return pages._attention_of_copies(query, keys, values, table, seen, scale)


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        (gather, ""),
        (lambda query, *_: query, "it gives other values than plain attention"),
        (refuse, "RuntimeError: FlashAttention only supports Ampere GPUs$"),
    ],
)  # fmt: skip
def test_the_paged_kernel_is_tried_before_its_use(monkeypatch, recwarn, kernel, problem):
    monkeypatch.setattr(pages, "_by_kernel", kernel)
    monkeypatch.setattr(pages, "takes_pages", lambda: True)
    pages._kernel_works.cache_clear()
    works = [pages._kernel_works(torch.device("cpu"), torch.bfloat16, 4, 2, 8) for _ in range(2)]
    pages._kernel_works.cache_clear()
    assert works == [not problem] * 2 and len(recwarn) == bool(problem)
    if problem:
        assert re.search(f"gathers keys and values, .* because {problem}", str(recwarn[0].message))


def test_a_failed_rollout_leaves_no_step_behind(policy, paged, monkeypatch):
    engine = TransformersEngine()
    monkeypatch.setattr(policy, "temperature", 0.7)
    answered(policy, Sampling(6), engine, LIMITS.clamp(max=6))
    with monkeypatch.context() as patch:
        patch.setattr(policy.output_weight, "data", policy.output_weight * torch.inf)
        with pytest.raises(FloatingPointError, match="Expected finite logits"):
            answered(policy, Sampling(6), engine, LIMITS.clamp(max=6))
    assert engine._step is None
