"""The command: what it prints, and what it refuses."""

import json
from pathlib import Path

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


@pytest.mark.slow
def test_a_paper_config_without_its_model(qwen, capsys):
    arguments = ("-c", PAPER, "--model-config", qwen, "--gpus", "8")
    replicas = found(capsys, *arguments, "--trainer.strategy=ddp")
    assert replicas["parameters"] == 7_615_616_512  # of the released model
    assert replicas["sharding"] == "ddp"
    phase = replicas["phases"]["optimizer step"]
    standing = ("weights", "reference", "optimizer", "buckets of gradients", "gradients")
    # 24 bytes a parameter, less half of the reference's linear weights (all but embeddings, biases and norms).
    linear = 28 * (2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18944) + 152064 * 3584
    assert sum(phase[part] for part in standing) == 24 * replicas["parameters"] - 2 * linear
    assert replicas["tokens_per_update"]["sampled"] == 32 * 16 * 1024

    shares = found(capsys, *arguments, "--trainer.strategy=fsdp2")
    assert shares["phases"]["rollout"]["weights"] * 8 == replicas["phases"]["rollout"]["weights"]
    assert shares["bytes_sent_per_gpu_and_update"]["all_gather"] > 0


@pytest.mark.slow
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


def test_fewer_steps_take_less_of_everything(capsys):
    whole, half = (found(capsys, "-c", "configs/gridworld.yaml", "--answer-tokens", steps) for steps in ("80", "40"))
    whole, half = whole["phases"]["backward begins"], half["phases"]["backward begins"]
    assert half["rollout"] * 2 == whole["rollout"]
    # Minibatches of at most 2,048 steps: 5,120 are three, the largest of 1,707, and 2,560 two.
    assert half["activations"] * 1707 == whole["activations"] * 1280


def test_more_gpus_than_prompts_are_idle(capsys):
    eight, sixteen = (found(capsys, "-c", "configs/gridworld.yaml", "--gpus", gpus) for gpus in ("8", "16"))
    assert sixteen["bytes_per_gpu"] == eight["bytes_per_gpu"]
    assert any("8 have none" in note for note in sixteen["notes"])
    assert not any("even shares" in note for note in eight["notes"])


def test_float64_takes_twice_as_much(capsys):
    arguments = ("-c", "configs/gsm8k.yaml", "--prompt-tokens", "60")
    single, double = (found(capsys, *arguments, f"--trainer.precision={name}-true") for name in ("32", "64"))
    for part in ("weights", "reference", "optimizer", "gradients"):
        assert double["phases"]["optimizer step"][part] == 2 * single["phases"]["optimizer step"][part]
    assert double["phases"]["rollout"]["KV cache"] == 2 * single["phases"]["rollout"]["KV cache"]
    assert double["parameters"] == single["parameters"]


def test_devices_that_are_no_number_are_said_to_be_one(capsys):
    arguments = ("-c", "configs/gridworld.yaml", "--trainer.accelerator=auto", "--trainer.devices=auto")
    for nodes, words in (("1", "taken to be 1 GPU, try --gpus"), ("2", "taken to be 1 GPU of each machine")):
        plan = found(capsys, *arguments, f"--trainer.num_nodes={nodes}")
        assert plan["gpus"] == int(nodes)
        assert any(words in note for note in plan["notes"])
    assert not any("taken to be 1 GPU" in note for note in found(capsys, *arguments, "--gpus", "2")["notes"])


def test_prompts_are_assumed_to_leave_room_for_answers(qwen, capsys):
    """Of 2,000 positions 1,024 are for answers, and of 300 too few are."""
    config = json.loads(Path(qwen).read_text())
    arguments = ("-c", PAPER, "--model-config", qwen, "--model.policy.max_prompt_tokens=1500")
    Path(qwen).write_text(json.dumps({**config, "max_position_embeddings": 2000}))
    assert found(capsys, *arguments)["prompt_tokens"] == 2000 - 1024
    Path(qwen).write_text(json.dumps({**config, "max_position_embeddings": 300}))
    with pytest.raises(UserError, match="fit into the 300 positions"):
        main(["plan", *arguments])


@pytest.mark.slow
def test_demonstrations_may_be_longer_than_what_is_sampled(capsys):
    """Answers of supervised fine-tuning are the data's, and have to fit the model alone."""
    arguments = ("-c", "configs/gsm8k_sft.yaml", "--prompt-tokens", "40", "--answer-tokens")
    assert found(capsys, *arguments, "81")["answer_tokens"] == 81
    with pytest.raises(UserError, match="fit into the"):
        main(["plan", *arguments, "1000000"])


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
        (("-c", "configs/gsm8k.yaml", "--answer-tokens", "81"), "answer-tokens to be at most 80.*but got 81"),
        (("-c", "configs/gsm8k.yaml", "--prompt-tokens", "1000000"), "fit into the .* positions .*of 1000000 tokens"),
        (
            ("-c", "configs/gsm8k.yaml", "--model.policy.max_prompt_tokens=100", "--prompt-tokens", "101"),
            "at most max_prompt_tokens, 100, but got 101",
        ),
        (
            ("-c", "configs/gsm8k.yaml", "--trainer.precision=64-true", "--trainer.strategy=FSDP2Strategy"),
            "Expected precision 32-true or bf16-mixed with .*FSDP2Strategy",
        ),
        (("-c", "configs/gridworld.yaml", "--answer-tokens", "81"), "answer-tokens to be at most 80"),
        (("-c", "configs/gridworld.yaml", "--prompt-tokens", "9"), "Expected no --prompt-tokens for CategoricalMLP"),
        (("-c", "configs/gridworld.yaml", "--images", "1x64x64"), "Expected no --images for CategoricalMLP"),
        (("-c", "configs/gridworld.yaml", "--model-config", "x.json"), "Expected no --model-config for CategoricalMLP"),
        (("-c", "configs/gsm8k.yaml", "--model.group_size=1"), "group_size"),
        ((), "Expected a configuration, but got none"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        main(["plan", *arguments])


@pytest.mark.parametrize("option", [("--gpus", "0"), ("--images", "3"), ("--prompt-tokens", "x")])
def test_options_that_make_no_sense(option, capsys):
    with pytest.raises(SystemExit):
        main(["plan", "-c", "configs/gsm8k.yaml", *option])
    assert "expected" in capsys.readouterr().err


def test_help(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    shown = capsys.readouterr().out
    for word in ("--gpus", "--model-config", "examples:"):
        assert word in shown
