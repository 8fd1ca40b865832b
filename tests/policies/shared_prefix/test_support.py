"""Loading finds out whether a model can share prompts, and hides no fault while it does."""

import pytest
import torch
import transformers

from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.shared_prefix import support
from lightning_cgrpo.policies.tiny.text import make_tiny_model

SIZES = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", hidden_size=32, layers=1)


@pytest.fixture
def fast_products():
    """As the command line sets products on a GPU."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def test_the_comparison_has_full_precision(directory, monkeypatch, fast_products):
    during = []
    compare = support._difference

    def spy(*given):
        during.append(torch.get_float32_matmul_precision())
        return compare(*given)

    monkeypatch.setattr(support, "_difference", spy)
    policy = CausalLMPolicy(str(directory))
    policy.load()
    assert policy.shares_prompts
    assert during == ["highest"]
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.parametrize("kind", [RuntimeError, TypeError, ValueError])
def test_an_exception_of_another_kind_is_raised(kind, directory, monkeypatch, fast_products):
    def fail(*_):
        raise kind("a fault")

    monkeypatch.setattr(CausalLMPolicy, "packed_log_probs", fail)
    policy = CausalLMPolicy(str(directory))
    for _ in range(2):  # the second load is no success either
        with pytest.raises(kind, match="a fault"):
            policy.load()
    assert torch.get_float32_matmul_precision() == "high"


def test_values_narrower_than_keys_are_refused_by_name(directory):
    config = transformers.DeepseekV3Config(
        **SIZES,
        moe_intermediate_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=8,
    )
    refused(transformers.DeepseekV3ForCausalLM(config), directory, "values of another width than keys")


def test_a_model_without_a_base_model_is_refused_by_name(directory):
    config = transformers.Llama4TextConfig(
        **SIZES,
        head_dim=8,
        intermediate_size_mlp=48,
        num_local_experts=2,
        layer_types=["full_attention"],
        no_rope_layers=[1],
    )
    refused(transformers.Llama4ForCausalLM(config), directory, "no base model")


def refused(model, directory, reason):
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    before = model.config._attn_implementation
    with pytest.warns(match=reason):
        policy = CausalLMPolicy.from_model(model.eval(), tokenizer)
    assert not policy.shares_prompts
    assert model.config._attn_implementation == before
