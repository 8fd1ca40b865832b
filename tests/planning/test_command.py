"""The command: what it prints, and what it refuses."""

import json

import pytest

from lightning_cgrpo.__main__ import main
from lightning_cgrpo.errors import UserError

QWEN_7B = {
    "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip
PAPER = "configs/paper/gsm8k_qwen2_5_7b.yaml"


@pytest.fixture
def qwen(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN_7B))
    return str(path)


def found(capsys, *arguments):
    main(["plan", *arguments, "--json"])
    return json.loads(capsys.readouterr().out)


def test_a_paper_config_without_its_model(qwen, capsys):
    arguments = ("-c", PAPER, "--model-config", qwen, "--gpus", "8")
    replicas = found(capsys, *arguments, "--trainer.strategy=ddp")
    assert replicas["parameters"] == 7_615_616_512  # of the released model
    assert replicas["sharding"] == "ddp"
    phase = replicas["phases"]["optimizer step"]
    standing = ("weights", "reference", "optimizer", "buckets of gradients", "gradients")
    assert sum(phase[part] for part in standing) == 24 * replicas["parameters"]
    assert replicas["tokens_per_update"]["sampled"] == 32 * 16 * 1024

    shares = found(capsys, *arguments, "--trainer.strategy=fsdp2", "--tflops", "350", "--bandwidth", "2500")
    assert shares["phases"]["rollout"]["weights"] * 8 == replicas["phases"]["rollout"]["weights"]
    assert shares["bytes_sent_per_gpu_and_update"]["all_gather"] > 0
    assert shares["seconds_per_update"]["total"] == pytest.approx(
        sum(value for name, value in shares["seconds_per_update"].items() if name != "total")
    )


def test_overrides_count(qwen, capsys):
    arguments = ("-c", PAPER, "--model-config", qwen)
    usual = found(capsys, *arguments)
    adapters = found(
        capsys, *arguments, "--model.policy.lora.rank=64", "--model.policy.dtype=bfloat16",
        "--model.optimization.kl_weight=0",
    )  # fmt: skip
    assert adapters["trainable"] < 0.05 * adapters["parameters"]
    assert "reference" in usual["phases"] and "reference" not in adapters["phases"]
    assert adapters["bytes_per_gpu"]["peak"] < usual["bytes_per_gpu"]["peak"] / 3


def test_the_tables(capsys):
    main(["plan", "-c", "configs/gsm8k.yaml", "--prompt-tokens", "60"])
    shown = capsys.readouterr().out
    for words in ("355 k parameters", "16 prompts of 60 tokens", "KV cache", "through training passes", "TFLOP"):
        assert words in shown
    assert "Sent by each GPU" not in shown  # one alone
    assert "--answer-tokens" in shown  # what was assumed


def test_a_small_policy(capsys):
    plan = found(capsys, "-c", "configs/gridworld.yaml")
    assert plan["parameters"] == 30 * 128 + 128 + 128 * 128 + 128 + 128 * 5 + 5
    assert plan["tokens_per_update"]["sampled"] == 8 * 8 * 80
    assert plan["tokens_per_update"]["trained"] == 2 * 8 * 8 * 80
    assert plan["phases"]["backward begins"]["optimizer"] == 2 * 4 * plan["parameters"]


def test_supervised_fine_tuning_generates_nothing(capsys):
    plan = found(capsys, "-c", "configs/gsm8k_sft.yaml", "--prompt-tokens", "40", "--answer-tokens", "30")
    assert "rollout" not in plan["phases"] and "reference" not in plan["phases"]
    assert plan["tokens_per_update"]["trained"] == 32 * (40 + 29)
    assert plan["tokens_per_update"]["sampled"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-c", "configs/gsm8q.yaml"), "no configuration file 'configs/gsm8q.yaml'.*Did you mean"),
        (("-c", "configs/gsm8k.yaml", "--model.policy.mdel=x"), "Unknown key 'mdel'"),
        (("-c", "configs/gsm8k.yaml", "--model.policy.model=nowhere/at/all"), "try --model-config FILE"),
        (("-c", "configs/gsm8k.yaml", "--model-config", "nothing.json"), "Expected --model-config"),
        (("-c", "configs/gsm8k.yaml", "--trainer.precision=16-mixed"), "Expected precision"),
        (("-c", "configs/gsm8k.yaml", "--trainer.strategy=deepspeed"), "Expected a strategy"),
        (("-c", "configs/gsm8k.yaml", "--images", "1x64x64"), "Expected no images"),
        (("-c", "configs/gsm8k.yaml", "--bandwidth", "5"), "Expected --tflops"),
        (("-c", "configs/gsm8k.yaml", "--model.group_size=1"), "group_size"),
        ((), "Expected a configuration with a model"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        main(["plan", *arguments])


@pytest.mark.parametrize("option", [("--gpus", "0"), ("--tflops", "-1"), ("--images", "3"), ("--prompt-tokens", "x")])
def test_options_that_make_no_sense(option, capsys):
    with pytest.raises(SystemExit):
        main(["plan", "-c", "configs/gsm8k.yaml", *option])
    assert "expected" in capsys.readouterr().err


def test_help(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    shown = capsys.readouterr().out
    for word in ("--gpus", "--model-config", "--tflops", "examples:"):
        assert word in shown
