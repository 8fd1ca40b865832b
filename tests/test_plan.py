"""Bytes that `plan` counts, by hand and against a run's real tensors."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import transformers

from lightning_cgrpo import CausalLMPolicy
from lightning_cgrpo.__main__ import main
from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.cli.plan import Setting, build, critic_network, gathered, language_parts, nbytes, plan, standing
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.grpo.critic.language_critic import LanguageCritic
from lightning_cgrpo.policies.pretrained import LoRA
from lightning_cgrpo.policies.shared_prefix.decoding import Decoding
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.policies.vision_language import VisionLanguagePolicy
from lightning_cgrpo.samplers.generation import GenerationSampler
from tests.policies import tiny_families

QWEN_7B = {
    "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip
WEIGHTS = 7_615_616_512  # of the released model
ALONE = Setting(1, False, False, False, 2, 3, 50, 20)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model") / "m", layers=3)


@pytest.fixture
def qwen(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN_7B))
    return f"--model.policy.model={tmp_path}"


def phases(*arguments, **options):
    """Of GSM8K at the paper's scale: prompts of 512 tokens, 16 answers of 1,024 tokens, 8 groups sampled at once."""
    config, _ = read_arguments("plan", ["-c", "configs/paper/gsm8k_qwen2_5_7b.yaml", *arguments])
    return plan(config, prompt_tokens=512, **options)[1]


def test_full_training_on_one_gpu(qwen):
    counted = phases(qwen, "--trainer.precision=32-true", "--trainer.strategy=auto", gpus=1)
    cached = 2 * 28 * 4 * 128 * 8 * (512 + 16 * 1023) * 4  # 2 L K d n (P + G (C - 1)) numbers of float32
    chunk = 256 * 2**20 // (4 * 152064) * 152064 * 4
    standing = {"weights": 4 * WEIGHTS, "optimizer": 8 * WEIGHTS, "reference": 4 * WEIGHTS}
    assert counted == {
        "rollout": {**standing, "keys and values": cached, "logits": 128 * 152064 * 24},
        "training": {**standing, "gradients": 4 * WEIGHTS, "logits": 3 * chunk},
    }


@pytest.mark.parametrize("gpus", [2, 8])
def test_shards_and_replicas(qwen, gpus):
    """FSDP2 splits standing tensors, and gathers everything for a rollout, but two layers in a pass."""
    shards = phases(qwen, "--trainer.strategy=fsdp2", "--trainer.precision=32-true", gpus=gpus)
    layer = 2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18944 + 3584 + 2 * 512 + 2 * 3584
    assert shards["training"]["weights"] == shards["training"]["gradients"] == 4 * WEIGHTS // gpus
    assert shards["training"]["optimizer"] == 8 * WEIGHTS // gpus
    assert shards["rollout"]["gathered weights"] == 4 * WEIGHTS
    assert shards["training"]["gathered weights"] == 4 * (WEIGHTS - 26 * layer)
    assert shards["rollout"]["keys and values"] == 2 * 28 * 4 * 128 * min(8, 32 // gpus) * (512 + 16 * 1023) * 4
    replicas = phases(qwen, "--trainer.strategy=ddp", "--trainer.precision=32-true", gpus=gpus)
    assert replicas["training"]["weights"] == replicas["training"]["DDP's copy of gradients"] == 4 * WEIGHTS


def test_a_critic_adds_its_own_tensors():
    config, _ = read_arguments(
        "plan", ["-c", "configs/gsm8k.yaml", "-c", "configs/ablations/gsm8k/ppo_lagrangian.yaml"]
    )
    with_critic = plan(config)[1]["critic's training"]
    policy = CausalLMPolicy("packaged:word-problems")
    network = build(policy, ALONE)
    heads = (network.config.hidden_size + 1) * 4  # of correctness, format, integers and length
    weights = nbytes(network) + 4 * heads  # its embeddings stay, although the output layer goes
    assert with_critic["critic's weights"] == with_critic["gradients"] == weights
    assert with_critic["critic's optimizer"] == 2 * weights


def test_small_policies_and_fine_tuning():
    config, _ = read_arguments("plan", ["-c", "configs/gridworld.yaml"])
    count = 30 * 128 + 128 + 128 * 128 + 128 + 128 * 5 + 5
    assert plan(config)[1]["training"] == {"weights": 4 * count, "optimizer": 8 * count, "gradients": 4 * count}
    config, _ = read_arguments("plan", ["-c", "configs/gsm8k_sft.yaml"])
    assert list(plan(config)[1]) == ["training"]


@pytest.mark.parametrize("options", [{}, {"lora": LoRA(rank=4)}, {"dtype": "bfloat16", "lora": LoRA(rank=4)}])
def test_counts_are_those_of_real_tensors(directory, options):
    """Weights, gradients and moments of a loaded policy after a step; so the heads of its critic, and its shards."""
    policy = CausalLMPolicy(str(directory), **options)
    network = build(policy, ALONE)
    assert policy.model is None  # nothing was read

    class Owner:
        make_optimizer = staticmethod(lambda parameters: torch.optim.AdamW(parameters))

    counted = standing(network, Owner, ALONE)
    policy.load()
    trained = [p for p in policy.parameters() if p.requires_grad]
    assert counted["weights"] == sum(p.nbytes for p in policy.parameters())
    optimizer = Owner.make_optimizer(trained)
    for parameter in trained:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = [v for values in optimizer.state.values() for v in values.values()]
    assert counted["optimizer"] == sum(v.nbytes for v in state if v.dim())
    assert nbytes(network, trained=True) == sum(p.grad.nbytes for p in trained)
    critic = LanguageCritic(CausalLMPolicy(str(directory), **options))
    counted = nbytes(critic_network(critic, 3, ALONE))
    critic.load(3)
    assert counted == sum(p.nbytes for p in critic.parameters())
    whole = gathered(network, replace(ALONE, gpus=2, sharded=True))["gathered weights"]
    assert whole == sum(p.nbytes for p in policy.parameters())


@pytest.mark.parametrize("shared", [True, False])
def test_the_cache_is_that_of_a_rollout(directory, monkeypatch, shared):
    policy = CausalLMPolicy(str(directory), share_prompts=shared)
    network = build(policy, ALONE)
    module = SimpleNamespace(policy=policy, sampler=GenerationSampler(20, min_new_tokens=20), group_size=3)
    counted, _ = language_parts(network, module, ALONE)
    held = []

    class Spy(Decoding):
        def _continue(self, layer, *arguments):
            result = super()._continue(layer, *arguments)
            names = ("prompt_key", "prompt_value", "key", "value")
            held.append(sum(getattr(of, name).nbytes for of in self._layers.values() for name in names))
            return result

    class Cache(transformers.DynamicCache):
        def update(self, *arguments, **options):
            result = super().update(*arguments, **options)
            held.append(sum(sum(t.nbytes for t in (of.keys, of.values) if t is not None) for of in self.layers))
            return result

    monkeypatch.setattr("lightning_cgrpo.policies.continuation.Decoding", Spy)
    monkeypatch.setattr("transformers.DynamicCache", Cache)
    policy.load()
    prompts = policy.padded(torch.randint(5, 200, (2, 50)).tolist())
    draws = torch.rand(2, 3, 20, dtype=torch.float64)
    module.sampler.engine.generate(policy, prompts, 3, module.sampler.sampling, draws)
    assert counted["keys and values"] == max(held)


@pytest.mark.parametrize("family", ["qwen3_vl", "internvl"])
def test_vision_language_models(tmp_path, family):
    policy = VisionLanguagePolicy(str(tiny_families.write(tmp_path, family)))
    counted = nbytes(build(policy, ALONE))
    policy.load()
    assert counted == sum(p.nbytes for p in policy.parameters())


@pytest.mark.parametrize(
    "content", [None, "{", *(json.dumps({"model_type": name}) for name in ("vit", "xlnet", "bert"))]
)
def test_a_model_that_cannot_be_loaded_is_one_line(tmp_path, content):
    """The line of loading."""
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    command = ["plan", "-c", "configs/gsm8k.yaml", f"--model.policy.model={tmp_path}"]
    lines = []
    for read in (CausalLMPolicy(str(tmp_path)).load, lambda: main(command)):
        with pytest.raises(UserError, match="try another") as caught:
            read()
        lines.append(str(caught.value))
    assert lines[0] == lines[1] and "\n" not in lines[0]


def test_what_is_printed(capsys):
    main(["plan", "-c", "configs/gsm8k.yaml", "--prompt-tokens", "60"])
    shown = capsys.readouterr().out
    for words in ("0.3549 million", "16 prompts of 60 tokens", "keys and values", "together", "Not counted"):
        assert words in shown
