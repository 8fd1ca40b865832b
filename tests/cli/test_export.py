"""Policies leave as Hugging Face directories, with the answers that they had, and come back."""

import functools
import json
import re
import shlex
import shutil
from pathlib import Path

import peft
import pytest
import torch
import transformers

from lightning_cgrpo.__main__ import main
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.randomness import Stream, uniform
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy, LoRA
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.samplers.generation import GenerationSampler
from tests.quiet import AVERAGED
from tests.refusals import refused

ROOT = Path(__file__).parents[2]
PROMPTS = ["Tom has 3 apples.", "Anna reads 12 pages every day. How many in 5 days?", "A"]
LORA = "--model.policy.lora.rank=4"


@pytest.fixture(scope="module")
def home(made_in_a_folder):
    """A folder with models, questions, and two runs of an update each: of all weights, and of adapters."""

    def make():
        make_tiny_model("tiny", hidden_size=32, layers=1)
        make_tiny_model("wider", hidden_size=64, layers=1)
        rows = [{"question": f"{n} apples and 4?", "answer": f"#### {n + 4}"} for n in range(4)]
        Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        main(["fit", *run("whole")])
        main(["fit", *run("adapters"), LORA])

    return made_in_a_folder(make)


def run(name, model="tiny"):
    # The path is relative: adapters must find their model from elsewhere.
    return shlex.split(
        f"-c configs/paper/gsm8k_qwen2_5_1.5b.yaml --trainer.logger.init_args.name={name} --model.policy.model={model} "
        "--model.policy.dtype=float64 --trainer.precision=64-true --data.path=. --data.prompts_per_update=2 "
        "--data.test_train_prompts=0 --model.group_size=4 --model.sampler.max_new_tokens=32 --model.optimizer.lr=0.5 "
        "--trainer.max_steps=1 --trainer.accelerator=cpu --trainer.strategy=auto --threads=1 "
        "--callbacks.initial_rates=null --callbacks.progress=null --trainer.enable_progress_bar=false "
        "--trainer.enable_model_summary=false"
    )


@pytest.fixture(autouse=True)
def at_home(home, monkeypatch):
    monkeypatch.chdir(home)


@functools.cache
def export(name, *arguments):
    """The folder of a run's model, for all tests that read it."""
    out = Path("exported", "_".join([name, *arguments])).absolute()
    main(["export", *run(name), "--ckpt_path=last", f"--out={out}", *arguments])
    return out


def last(name):
    return torch.load(f"runs/{name}/version_0/checkpoints/last.ckpt", weights_only=True)


def trained(name, **options):
    """The policy at the end of a run, from its checkpoint."""
    policy, saved = loaded("tiny", **options), last(name)["state_dict"]
    policy.load_state_dict(policy.base | {key[7:]: value for key, value in saved.items() if key.startswith("policy.")})
    return policy


def loaded(model, **options):
    policy = CausalLMPolicy(str(model), **{"dtype": "float64", **options})
    policy.load()
    return policy


def logits(model):
    """Of one prompt after the other, so that no padding enters."""
    tokenizer = transformers.AutoTokenizer.from_pretrained("tiny")
    with torch.no_grad():
        return torch.cat([model(**tokenizer(prompt, return_tensors="pt")).logits[0] for prompt in PROMPTS])


def sdpa(policy):
    """The policy's model, with the attention that it has elsewhere."""
    policy.network.set_attn_implementation("sdpa")
    return policy.model


def close(one, other, atol=1e-12):
    """But for the order of sums, which follows from where in memory the weights are."""
    torch.testing.assert_close(one, other, rtol=0, atol=atol)


def rollouts(policy, **options):
    index = torch.arange(len(PROMPTS))
    sampler = GenerationSampler(max_new_tokens=24, **options)
    prompts = PromptGroups(index, {"prompt": PROMPTS})
    return sampler.rollout(policy, prompts, 4, lambda *shape: uniform(0, Stream.TEST, 0, index, shape))


def log_probs(policy, answers):
    with torch.no_grad():
        return policy(policy.examples(answers)).log_probs * answers.mask.flatten(0, 1)


def initial():
    return transformers.AutoModelForCausalLM.from_pretrained("tiny", dtype=torch.float64)


def test_generates_the_same_tokens():
    out = export("whole")
    policy = trained("whole")
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    own, tokenizer = policy.model.state_dict(), transformers.AutoTokenizer.from_pretrained(out)
    assert all(torch.equal(value, own[name]) for name, value in model.state_dict().items())
    assert model.dtype == torch.float64 and (logits(model) - logits(initial())).abs().max() > 1e-3, "as it was trained"
    sampled = rollouts(policy)
    again = rollouts(CausalLMPolicy.from_model(model, tokenizer))
    assert torch.equal(sampled.actions, again.actions) and torch.equal(sampled.mask, again.mask)
    assert sampled.mask.sum(-1).unique().numel() > 1, "some answers end"
    greedy = rollouts(policy, top_k=1)
    for row, prompt in enumerate(PROMPTS):
        inputs = tokenizer(prompt, return_tensors="pt")
        generated = model.generate(**inputs, do_sample=False, max_new_tokens=24)[0, inputs.input_ids.shape[1] :]
        assert generated.tolist() == greedy.actions[row, 0][greedy.mask[row, 0]].tolist()


@pytest.mark.parametrize("arguments", [("whole",), ("adapters", LORA, "--merge")])
def test_what_surrounds_the_weights_survives(arguments):
    out = export(*arguments)
    for name in ("config.json", "generation_config.json"):
        before, after = (json.loads((Path(folder) / name).read_text()) for folder in ("tiny", out))
        assert {**after, "dtype": None} == {**before, "dtype": None}
    before, after = (transformers.AutoTokenizer.from_pretrained(folder) for folder in ("tiny", out))
    assert after.chat_template == before.chat_template
    assert after(PROMPTS).input_ids == before(PROMPTS).input_ids
    assert loaded(out).stop_tokens == loaded("tiny").stop_tokens
    assert not (out / "adapter_config.json").exists()


def test_adapters_are_saved_alone(tmp_path, home, monkeypatch):
    out = export("adapters", LORA)
    assert (out / "adapter_model.safetensors").is_file()
    assert not {"config.json", "model.safetensors"} & {file.name for file in out.iterdir()}
    assert json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"] == str(home / "tiny")
    expected = logits(sdpa(trained("adapters", lora=LoRA(rank=4))))
    assert (expected - logits(initial())).abs().max() > 1e-3
    by_peft = peft.PeftModel.from_pretrained(initial(), out)
    close(logits(by_peft), expected)
    by_transformers = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float64)
    close(logits(by_transformers), expected)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert tokenizer(PROMPTS).input_ids == transformers.AutoTokenizer.from_pretrained("tiny")(PROMPTS).input_ids
    assert tokenizer.chat_template
    monkeypatch.chdir(tmp_path)  # from elsewhere, too
    assert loaded(out).stop_tokens


@pytest.mark.parametrize("merge", [[], ["--merge"]])
def test_the_policy_is_loaded_from_adapters(merge):
    policy = trained("adapters", lora=LoRA(rank=4))
    again = loaded(export("adapters", LORA, *merge))
    answers = rollouts(policy)
    # The model's norms and rotations are computed in float32, whatever the dtype.
    close(log_probs(again, answers), log_probs(policy, answers), atol=1e-6)
    names = {name for name, parameter in again.named_parameters() if parameter.requires_grad}
    assert names and all(("lora_" in name) != bool(merge) for name in names)


def test_adapters_where_positions_are_absolute(tmp_path):
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=600, n_positions=64, n_embd=32, n_layer=2, n_head=4, eos_token_id=2)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "base")
    transformers.AutoTokenizer.from_pretrained("tiny").save_pretrained(tmp_path / "base")
    policy = loaded(tmp_path / "base", lora=LoRA(rank=2, target_modules=["c_attn"]))
    policy.save_pretrained(tmp_path / "adapters")
    prompts = policy.read_prompts(PROMPTS).values()  # of different lengths, so padded
    close(loaded(tmp_path / "adapters").logits(*prompts, keep=1), policy.logits(*prompts, keep=1))


def test_adapters_go_on(tmp_path):
    """They alone are trained, away from a reference that has them as they were, and are exported as adapters again."""
    first = export("adapters", LORA)
    name = f"more_{tmp_path.name}"
    main(["fit", *run(name, first)])
    state = last(name)["state_dict"]
    before = loaded(first).state_dict()
    for key, value in before.items():
        assert "lora_" not in key or torch.equal(state[f"reference.{key}"], value)
    adapters = {key[7:] for key in state if key.startswith("policy.")}
    assert adapters == {key for key in before if "lora_" in key}
    assert any(not torch.equal(state[f"policy.{key}"], before[key]) for key in adapters)

    second = tmp_path / "second"
    main(["export", *run(name, first), f"--out={second}"])
    configs = [json.loads((folder / "adapter_config.json").read_text()) for folder in (first, second)]
    assert configs[0]["base_model_name_or_path"] == configs[1]["base_model_name_or_path"]
    after = loaded(second).state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(value, state.get(f"policy.{key}", before[key])) for key, value in after.items())


@pytest.mark.slow
def test_a_checkpoint_of_adapters_holds_no_base_and_resumes_on_the_same_base_alone(tmp_path):
    begun = "--ckpt_path=runs/adapters/version_0/checkpoints/last.ckpt"
    names = last("adapters")["state_dict"].keys()
    assert names and all(".lora_" in name for name in names)
    ends = []
    for name, more in (("at_once", []), ("resumed", [begun])):
        main(["fit", *run(name), LORA, "--trainer.max_steps=2", *more])
        ends.append(last(name))
    for part in ("state_dict", "base_weights"):
        assert ends[0][part].keys() == ends[1][part].keys()
    assert all(torch.equal(tensor, ends[1]["state_dict"][name]) for name, tensor in ends[0]["state_dict"].items())
    moments = [end["optimizer_states"][0]["state"].values() for end in ends]
    assert all(torch.equal(one["exp_avg"], other["exp_avg"]) for one, other in zip(*moments, strict=True))

    other = loaded("tiny").model
    with torch.no_grad():
        next(other.parameters())[0, 0] += 1e-3
    other.save_pretrained(tmp_path / "other")
    transformers.AutoTokenizer.from_pretrained("tiny").save_pretrained(tmp_path / "other")
    for command in (["fit", "--trainer.max_steps=3"], ["export", f"--out={tmp_path / 'out'}"]):
        with pytest.raises(UserError, match=r"base model on which .* trained its adapters, fingerprint"):
            main([command[0], *run("other", tmp_path / "other"), LORA, begun, *command[1:]])


@pytest.mark.slow
def test_averaged_adapters_resume_and_are_exported(tmp_path):
    ends = []
    for name, steps, more in (
        ("begun", 1, []),
        ("averaged_at_once", 2, []),
        ("averaged_resumed", 2, ["--ckpt_path=runs/begun/version_0/checkpoints/last.ckpt"]),
    ):
        main(["fit", *run(name), LORA, *AVERAGED, f"--trainer.max_steps={steps}", *more])
        ends.append(last(name))
    for part in ("state_dict", "current_model_state"):
        assert ends[1][part].keys() == ends[2][part].keys()
        assert all(torch.equal(tensor, ends[2][part][name]) for name, tensor in ends[1][part].items())
        assert all(".lora_" in name for name in ends[1][part])
    average = ends[2]["state_dict"]
    assert any(not torch.equal(tensor, ends[2]["current_model_state"][name]) for name, tensor in average.items())
    main(["export", *run("averaged_resumed"), LORA, *AVERAGED, f"--out={tmp_path / 'out'}"])
    exported = loaded(tmp_path / "out").state_dict()
    assert all(torch.equal(exported[name.removeprefix("policy.")], tensor) for name, tensor in average.items())


def test_a_runs_own_configuration_is_enough(tmp_path, capsys):
    main(["export", "-c", "runs/whole/version_0/config.yaml", "--out", str(tmp_path / "out")])
    text = capsys.readouterr().out
    assert "Wrote the policy after update 1, of runs/whole/version_0/checkpoints/last.ckpt, to " in text
    one, other = ((folder / "model.safetensors").read_bytes() for folder in (tmp_path / "out", export("whole")))
    assert one == other
    card = (tmp_path / "out" / "README.md").read_text()
    assert "# whole" in card and "`ConstrainedGRPO`: the policy after update 1. Reward: length" in card
    assert "| correctness >= " in card and "end of training" in card and "No certificate" in card


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*run("whole"), "--ckpt_path=tiny"], "is a model's directory, try --model.policy.model=tiny"),
        ([*run("whole"), "--model.policy.lora.rank=2"], "weights of this configuration's policy, but 'model."),
        (run("whole", "wider"), "is [464, 32] there and [464, 64] here, try the configuration that the checkpoint was"),
        (
            ["-c", "configs/gridworld.yaml", "--ckpt_path=runs/whole/version_0/checkpoints/last.ckpt"],
            "a language model",
        ),
    ],
    ids=["a model", "adapters", "a wider model", "a world"],
)
def test_what_is_wrong_is_said_in_a_line(tmp_path, arguments, words):
    assert words in refused(main, ["export", *arguments, f"--out={tmp_path / 'out'}"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments", [("whole",), ("adapters", LORA)])
def test_the_documents_example(folder, capsys, arguments):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "huggingface.md").read_text(), re.DOTALL)
    shutil.copytree(export(*arguments), folder / "models" / "mine")
    capsys.readouterr()
    names = {}
    exec(example, names)
    assert names["model"].dtype == torch.float32
    assert capsys.readouterr().out.strip()


def test_adapters_whose_base_is_gone(tmp_path):
    loaded("tiny", lora=LoRA(rank=2)).save_pretrained(tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": "/nowhere"}))
    with pytest.raises(UserError, match="another base_model_name"):
        CausalLMPolicy(str(tmp_path)).load()
