"""Rows, tokens, traffic and operations of an update."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lightning_cgrpo import CausalLMPolicy
from lightning_cgrpo.grpo.minibatches import Share, micro_batches, partition
from lightning_cgrpo.planning.activations import Row
from lightning_cgrpo.planning.communication import Traffic, ring, traffic
from lightning_cgrpo.planning.execution import Execution
from lightning_cgrpo.planning.flops import language_model_flops, row_flops
from lightning_cgrpo.planning.sizes import language_model_sizes
from lightning_cgrpo.planning.tokens import rows_of, tokens
from lightning_cgrpo.planning.workload import Workload, optimizer_steps, pieces
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.rollout import Examples


def work(**changes):
    settings = {
        "prompts": 4, "all_prompts": 8, "group_size": 4, "prompt_tokens": 10, "answer_tokens": 6,
        "passes": ((16,),), "generated": 4, "samples": True,
    }  # fmt: skip
    return Workload(**{**settings, **changes})


@pytest.mark.parametrize("size", [None, 1, 3, 16, 100])
@pytest.mark.parametrize("rows", [1, 7, 16])
def test_pieces_are_those_of_the_update(rows, size):
    assert pieces(rows, size) == tuple(len(piece) for piece in micro_batches(torch.arange(rows), size))


@pytest.mark.parametrize("size", [None, 2, 4, 7, 8, 12, 16, 64])
def test_steps_are_those_of_the_update(size):
    actions = torch.zeros(16, 2, dtype=torch.int64)
    examples = Examples({}, actions, actions == 0, torch.arange(4).repeat_interleave(4))
    real = [len(part) for part in partition(Share.of(examples, 4), size, 0, 0, 0)]
    assert sorted(optimizer_steps(16, 16, 4, size)) == sorted(real)


def test_prompts_are_once_in_a_pass_and_again_in_the_next():
    rows = rows_of(work(group_size=4), (6, 6, 4), shared=True)
    # Answers 0-5 are of prompts 0 and 1, 6-11 of 1 and 2, 12-15 of 3.
    assert [row.prompts for row in rows] == [2, 2, 1]
    assert [row.tokens for row in rows] == [2 * 10 + 6 * 5, 2 * 10 + 6 * 5, 10 + 4 * 5]


def test_tokens_of_all_processes():
    found = tokens(work(epochs=2, reference_passes=(8, 8)), shared=True)
    assert found.sampled == 8 * 4 * 6
    assert found.prompts == 8 * 10
    assert found.trained == 2 * (8 * 10 + 8 * 4 * 5)
    assert found.reference == 8 * 10 + 8 * 4 * 5
    assert found.unshared == 2 * 8 * 4 * 16
    assert tokens(work(), shared=False).trained == 8 * 4 * 15


# ---------------------------------------------------------------------- traffic


def how(sharding, gpus=4):
    return Execution(gpus, "cuda", False, sharding, "x", 2.0, "foreach")


def test_one_gpu_sends_nothing():
    assert traffic(100, 400, work(), how("none", 1), 4) == Traffic()
    assert traffic(100, 400, work(), how("fsdp", 1), 4) == Traffic()


def test_replicas_sum_gradients_once_an_optimizer_step():
    several = work(passes=((4, 4), (4, 4)), epochs=3)
    # A ring sends every chunk of a GPU's N chunks N - 1 times to sum, and N - 1 times to spread.
    once = sum(400 // 4 for _ in range(3)) + sum(400 // 4 for _ in range(3))
    assert traffic(100, 400, several, how("ddp"), 4) == Traffic(all_reduce=6 * once)


def test_shares_are_gathered_for_every_pass():
    several = work(passes=((4, 4), (4, 4)), epochs=3, reference_passes=(8, 8), old_passes=(8, 8))
    found = traffic(100, 400, several, how("fsdp"), 2)
    assert found.all_gather == (1 + 2 + 2 + 2 * 12) * ring(200, 4)
    assert found.reduce_scatter == 12 * ring(400, 4)
    assert found.total == found.all_gather + found.reduce_scatter
    assert traffic(100, 400, work(generated=0), how("fsdp"), 2).all_gather == 2 * ring(200, 4)


# ---------------------------------------------------------------------- operations


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    made = CausalLMPolicy(str(make_tiny_model(tmp_path_factory.mktemp("model") / "m", layers=2)))
    made.load()
    return made


def test_products_are_those_that_torch_counts(policy):
    """Without attention, which the counter doesn't know of on the CPU."""
    sizes = language_model_sizes(policy)
    prompts, group, length, answer = 2, 3, 11, 7
    ids = torch.randint(5, 200, (prompts, length))
    answers = torch.randint(5, 200, (prompts * group, answer))
    of = torch.arange(prompts).repeat_interleave(group)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        policy(Examples({}, answers, answers > 0, of, {"prompt_ids": ids, "prompt_mask": ids > 0}))
    counted = counter.get_flop_counts()["Global"]
    products = sum(value for name, value in counted.items() if "mm" in str(name))
    row = Row(prompts, prompts * group, length, answer)
    layers, output = row_flops(sizes, row)
    tower = sizes.decoder
    pairs = prompts * length * (length + 1) // 2 + prompts * group * (
        (answer - 1) * length + answer * (answer - 1) // 2
    )
    attention = 4 * tower.layers * tower.heads * tower.head_size * pairs
    rest = products - (layers - attention + output)
    # The entropy's inner products are batched products, too; and positions times frequencies.
    assert 0 <= rest <= 0.02 * products


def test_training_is_three_times_a_forward_pass_and_four_with_checkpoints(policy):
    sizes = language_model_sizes(policy)
    forward = sum(row_flops(sizes, Row(4, 16, 10, 6)))
    scale = 2  # twice as many prompts as this process has
    assert language_model_flops(sizes, work(), False, "cpu")["training"] == scale * 3 * forward
    layers, output = row_flops(sizes, Row(4, 16, 10, 6))
    assert language_model_flops(sizes, work(), True, "cpu")["training"] == scale * (4 * layers + 3 * output)
