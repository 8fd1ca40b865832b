"""Rotations of a decoded step, beside transformers' own."""

import pytest
import torch
import transformers
from transformers.models.glm import modeling_glm
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2

from lightning_cgrpo.policies.shared_prefix.rotation import NAME, JointRotation


def model(family, **more):
    config = getattr(transformers, f"{family}Config")(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=0, **more,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.fixture(scope="module")
def rotation():
    return JointRotation(model("Qwen2"))


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("kinds", [1, 2, 4])
@pytest.mark.parametrize(
    ("dtype", "angles"),
    [(torch.float64,) * 2, (torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.bfloat16, torch.float32)],
)
def test_equals_transformers_bit_for_bit(rotation, axis, kinds, dtype, angles):
    for seed in range(2):  # another step has other angles
        draw = torch.Generator().manual_seed(seed)
        q, k = (torch.randn(1, 5, heads, 8, generator=draw).to(dtype) for heads in (4, kinds))
        angle = torch.randn(1, 5, 8, generator=draw, dtype=torch.float64)  # halves need not be equal
        given = *((q.transpose(1, 2), k.transpose(1, 2)) if axis == 1 else (q, k)), angle.cos().to(angles)
        given = *given, angle.sin().to(angles), axis
        for found, expected in zip(rotation.rotated(*given), modeling_llama.apply_rotary_pos_emb(*given), strict=True):
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)


def test_only_inside_the_context_also_after_an_error(rotation):
    before = modeling_qwen2.apply_rotary_pos_emb
    with pytest.raises(KeyError), rotation:
        assert modeling_qwen2.apply_rotary_pos_emb == rotation.rotated
        raise KeyError
    assert modeling_qwen2.apply_rotary_pos_emb is before


def test_overlapping_contexts_of_two_threads_leave_the_function():
    before, (one, other) = modeling_qwen2.apply_rotary_pos_emb, (JointRotation(model("Qwen2")) for _ in range(2))
    one.__enter__()
    other.__enter__()
    one.__exit__()
    other.__exit__()
    assert modeling_qwen2.apply_rotary_pos_emb is before


def test_padded_rows_of_another_thread_are_rotated_too(rotation):
    q, k, cos, sin = torch.randn(3, 4, 5, 8), torch.randn(3, 2, 5, 8), torch.randn(3, 5, 8), torch.randn(3, 5, 8)
    expected = modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
    assert all(map(torch.equal, rotation.rotated(q, k, cos, sin), expected))


def test_other_rotations_stay():
    """GLM turns neighbors among the numbers, and only some of them."""
    before = getattr(modeling_glm, NAME)
    with JointRotation(model("Glm", head_dim=8)):
        assert getattr(modeling_glm, NAME) is before
