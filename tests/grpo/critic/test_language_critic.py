"""A language model with value heads: shared prompts as padded rows, its own weights, and one update of it."""

import pytest
import torch
from torch import nn

from lightning_cgrpo.grpo.critic.language_critic import LanguageCritic
from lightning_cgrpo.policies.adapters import LoRA
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from tests.policies.small_policies import ragged


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", hidden_size=32, context_length=64)


def critic_of(directory, random_heads=True, **options):
    critic = LanguageCritic(CausalLMPolicy(str(directory), **{"dtype": "float64"} | options))
    critic.load(3)
    if random_heads:
        torch.manual_seed(0)
        nn.init.normal_(critic.heads.weight)
    return critic


def test_shared_prompts_change_no_value(directory):
    shared, padded = critic_of(directory), critic_of(directory, share_prompts=False)
    assert shared.network.shares_prompts and not padded.network.shares_prompts
    rollouts = ragged()
    examples = shared.network.examples(rollouts)
    values, expected = shared(examples), padded(examples)
    assert values.shape == (9, 8, 3)
    torch.testing.assert_close(values[examples.mask], expected[examples.mask], rtol=0, atol=1e-10)


def test_a_value_sees_the_tokens_before_its_step(directory):
    """A token changes the values after it, and not its own."""
    critic, rollouts = critic_of(directory), ragged()
    examples = critic.network.examples(rollouts)
    first = critic(examples)
    examples.actions[2, 3] += 1
    second = critic(examples)
    assert torch.equal(first[2, :4], second[2, :4])
    assert not torch.isclose(first[2, 4:6], second[2, 4:6]).any()
    assert torch.equal(first[3:], second[3:])


def test_values_are_computed_in_full_precision_whatever_the_autocast(directory):
    critic = critic_of(directory, dtype="float32")
    examples = critic.network.examples(ragged())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = critic(examples)[examples.mask]
    assert values.dtype == torch.float32 and not torch.equal(values, values.bfloat16().float())


def test_first_predicts_zero_and_has_no_output_layer(directory):
    critic = critic_of(directory, random_heads=False)
    assert critic(critic.network.examples(ragged())).eq(0).all()
    assert isinstance(critic.network.network.get_output_embeddings(), nn.Identity)


def test_adapters(directory):
    critic = critic_of(directory, lora=LoRA(rank=4))
    trained = {name for name, p in critic.named_parameters() if p.requires_grad}
    assert {name for name in trained if "lora" not in name} == {"heads.weight", "heads.bias"}
    critic(critic.network.examples(ragged())).sum().backward()
    assert all(p.grad is not None for name, p in critic.named_parameters() if name in trained)
