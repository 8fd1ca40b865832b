"""What is said to be kept for the backward pass, against the tensors that autograd keeps."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from lightning_cgrpo import CausalLMPolicy
from lightning_cgrpo.planning.activations import Arithmetic, Row, saved
from lightning_cgrpo.planning.memory import logits_kept
from lightning_cgrpo.planning.sizes import language_model_sizes
from lightning_cgrpo.policies.pretrained import LoRA
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.policies.tiny.vision import make_tiny_vision_model
from lightning_cgrpo.policies.vision_language import VisionLanguagePolicy
from lightning_cgrpo.rollout import Examples
from tests.policies import tiny_families

PROMPTS, GROUP, LENGTH, ANSWER = 2, 3, 50, 20
ROW = Row(PROMPTS, PROMPTS * GROUP, LENGTH, ANSWER)


class Kept:
    """Bytes of the storages that autograd keeps, each once, the parameters' left out."""

    def __init__(self, policy, autocast):
        self.own = {p.untyped_storage().data_ptr() for p in policy.parameters()}
        self.storages = {}
        self.autocast = torch.autocast("cpu", torch.bfloat16, cache_enabled=False) if autocast else nullcontext()
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.keep, lambda tensor: tensor)

    def keep(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.own:
            self.storages[storage._cdata] = storage  # kept, so that no other gets its address
        return tensor

    def __enter__(self):
        self.hooks.__enter__()
        self.autocast.__enter__()
        return self

    def __exit__(self, *error):
        self.autocast.__exit__(*error)
        self.hooks.__exit__(*error)

    @property
    def bytes(self):
        return sum(storage.nbytes() for storage in self.storages.values())


def packed(policy):
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 200, (PROMPTS, LENGTH), generator=draw)
    answers = torch.randint(5, 200, (PROMPTS * GROUP, ANSWER), generator=draw)
    group = torch.arange(PROMPTS).repeat_interleave(GROUP)
    policy(Examples({}, answers, answers > 0, group, {"prompt_ids": ids, "prompt_mask": ids > 0}))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_checkpointing": True},
        {"lora": LoRA(rank=4)},
        {"lora": LoRA(rank=4), "dtype": "bfloat16"},
    ],
)
def test_a_packed_pass_keeps_what_is_said(tmp_path, options, autocast):
    policy = CausalLMPolicy(str(make_tiny_model(tmp_path / "m", layers=3, heads=8)), **options)
    sizes = language_model_sizes(policy)
    policy.load()
    arithmetic = Arithmetic(sizes.element, autocast, cuda=False)
    said = saved(sizes, ROW, 0, arithmetic, policy.gradient_checkpointing)
    with Kept(policy, autocast) as kept:
        packed(policy)
    expected = said.total + logits_kept(sizes, ROW, arithmetic)
    # Indices and numbers of the log-probabilities; of adapters' first layer, some copies; of checkpoints, cosines.
    assert kept.bytes == pytest.approx(expected, rel=0.03 if options else 0.002)
    assert bool(said.recomputed) == policy.gradient_checkpointing


@pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": True}, {"lora": LoRA(rank=4)}])
def test_a_packed_pass_in_float64_keeps_what_is_said(tmp_path, options):
    """Lightning makes all weights float64 under 64-true; norms stay float32."""
    policy = CausalLMPolicy(str(make_tiny_model(tmp_path / "m", layers=3, heads=8)), **options)
    sizes = language_model_sizes(policy, double=True)
    policy.load()
    policy.double()
    assert sizes.weight_bytes == sum(p.nbytes for p in policy.parameters())
    arithmetic = Arithmetic(sizes.element, autocast=False, cuda=False)
    with Kept(policy, False) as kept:
        packed(policy)
    expected = saved(sizes, ROW, 0, arithmetic, policy.gradient_checkpointing).total
    expected += logits_kept(sizes, ROW, arithmetic)
    assert kept.bytes == pytest.approx(expected, rel=0.03 if options else 0.002)


def test_a_recomputed_layer_keeps_what_is_said(tmp_path):
    """The difference that another layer makes, without checkpoints, is what one computes again."""
    found = []
    for layers in (2, 3):
        policy = CausalLMPolicy(str(make_tiny_model(tmp_path / f"{layers}", layers=layers)))
        policy.load()
        with Kept(policy, False) as kept:
            packed(policy)
        found.append(kept.bytes)
    sizes = language_model_sizes(policy)
    assert saved(sizes, ROW, 0, Arithmetic(4, False, False), True).recomputed == found[1] - found[0]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": True}, {"lora": LoRA(rank=4)}])
def test_the_vision_tower_keeps_what_is_said(tmp_path, options, autocast):
    policy = VisionLanguagePolicy(str(make_tiny_vision_model(tmp_path / "m", vision_layers=4)), **options)
    sizes = language_model_sizes(policy)
    policy.load()
    image = np.zeros((128, 256, 3), dtype=np.uint8)
    _, inputs = policy.read_prompts([[{"role": "user", "content": [{"type": "image", "image": image}]}]])
    arithmetic = Arithmetic(sizes.element, autocast, cuda=False)
    said = saved(sizes, ROW, inputs["patches"].shape[1], arithmetic, policy.gradient_checkpointing).vision
    with Kept(policy, autocast) as kept:
        policy._features(inputs["patches"], inputs["grids"])
    assert kept.bytes == pytest.approx(said, rel=0.03)


@pytest.mark.parametrize("family", ["qwen3_vl", "internvl"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_towers_of_other_families_keep_no_more_than_is_said(tmp_path, family, checkpointing):
    policy = VisionLanguagePolicy(str(tiny_families.write(tmp_path, family)), gradient_checkpointing=checkpointing)
    sizes = language_model_sizes(policy)
    policy.load()
    image = np.zeros((128, 256, 3), dtype=np.uint8)
    _, inputs = policy.read_prompts([[{"role": "user", "content": [{"type": "image", "image": image}]}]])
    patches = int(policy.family.tokens(inputs["grids"]).sum()) * sizes.vision.merge**2
    for autocast in (False, True):
        said = saved(sizes, ROW, patches, Arithmetic(sizes.element, autocast, cuda=False), checkpointing).vision
        with Kept(policy, autocast) as kept:
            policy._features(inputs["patches"], inputs["grids"])
        assert kept.bytes <= said <= 1.4 * kept.bytes


def test_a_row_has_prompts_once():
    assert Row(2, 6, 50, 20).tokens == 2 * 50 + 6 * 19
    assert Row(2, 6, 50, 20, shared=False).tokens == 6 * 69
    assert Row(2, 6, 50, 20).predicted == 120
