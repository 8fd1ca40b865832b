"""Models are saved and loaded: whole, as adapters, from the cache of the hub, and never with code."""

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from lightning_cgrpo import VisionLanguagePolicy
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy, LoRA
from lightning_cgrpo.policies.written_models import write, written_tensors
from tests.policies import tiny_families
from tests.policies.causal_families import build
from tests.policies.small_policies import adapted, loaded, perturb, ragged, with_lora
from tests.refusals import refused

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize("lora", [False, True])
def test_save_pretrained_round_trip(directory, tmp_path, lora):
    policy = with_lora(directory) if lora else loaded(directory, dtype="float64")
    perturb(policy)
    examples = policy.examples(ragged())
    expected = policy(examples).log_probs
    policy.save_pretrained(tmp_path / "saved", merge=lora)
    torch.testing.assert_close(policy(examples).log_probs, expected, rtol=0, atol=0)  # left as it was
    again = loaded(tmp_path / "saved", dtype=None)
    assert next(again.parameters()).dtype == torch.float64
    torch.testing.assert_close(again(examples).log_probs, expected, rtol=0, atol=1e-12)
    assert again.stop_tokens == policy.stop_tokens
    assert again.tokenizer("Tom has 3 pears.").input_ids == policy.tokenizer("Tom has 3 pears.").input_ids
    AutoModelForCausalLM.from_pretrained(tmp_path / "saved")


@pytest.mark.filterwarnings("error::FutureWarning")  # that a user of LoRA could not act on
@pytest.mark.parametrize("targets", [["q_proj", "lm_head"], ["embed_tokens"], ["embed_tokens", "lm_head"]])
def test_adapters_on_tied_embeddings_are_not_merged(targets, directory):
    """One weight cannot hold the adapters of one of its layers."""
    policy = loaded(directory, lora=LoRA(rank=2, target_modules=targets))
    with pytest.raises(UserError, match="whose weight other layers share"):
        written_tensors(policy.model)


@pytest.mark.parametrize("kind", ["tied", "untied", "adapters", "experts", "qwen3_vl", "internvl"])
def test_written_tensors_are_those_in_the_file(kind, directory, tmp_path):
    """By name, dtype and value: another process may receive them in place of the file."""
    if kind == "adapters":
        policy = with_lora(directory)
        perturb(policy)
        model = policy.model
    elif kind == "experts":
        model = build("qwen3_moe")
        assert any("gate_up_proj" in name for name, _ in model.named_parameters()), "transformers joins the experts"
    elif kind in ("qwen3_vl", "internvl"):
        source = tiny_families.write(tmp_path / "source", kind)
        model = transformers.AutoModelForImageTextToText.from_pretrained(source)
    else:
        model = AutoModelForCausalLM.from_pretrained(directory, tie_word_embeddings=kind == "tied")
    write(model, AutoTokenizer.from_pretrained(directory), tmp_path / "written", merge=True)
    expected = load_file(tmp_path / "written" / "model.safetensors")
    found = written_tensors(model)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name
        assert not found[name].requires_grad
    if kind == "experts":
        assert any("experts.3.down_proj" in name for name in found)
    if kind == "tied":
        own = {parameter.data_ptr() for parameter in model.parameters()}
        assert {tensor.data_ptr() for tensor in found.values()} == own, "no copies"


def test_adapters_are_merged_one_layer_at_a_time(directory, monkeypatch):
    """A GPU has no room for a second network."""
    policy = with_lora(directory)
    sizes, deepcopy = [], copy.deepcopy

    def spy(value, *memo):
        if isinstance(value, torch.nn.Module):
            sizes.append(sum(parameter.numel() for parameter in value.parameters()))
        return deepcopy(value, *memo)

    monkeypatch.setattr(copy, "deepcopy", spy)
    written_tensors(policy.model)
    layer = policy.network.model.layers[0]
    assert 0 < max(sizes) < sum(parameter.numel() for parameter in layer.parameters())


def test_a_missing_model_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # nobody answers there
    monkeypatch.setattr("lightning_cgrpo.core.json_client.getproxies", dict)
    for name in (str(tmp_path / "nowhere"), "./nowhere", "nobody/nothing", "no name", str(tmp_path), "m.gguf"):
        with pytest.raises(UserError, match=r"Expected model to be a directory.* but got .*tiny-model DIR") as caught:
            CausalLMPolicy(name).load()
        assert name in str(caught.value)
        assert ("gguf_file='m.gguf'" in str(caught.value)) == (name == "m.gguf")
        assert "\n" not in str(caught.value)
        assert caught.value.__suppress_context__


def test_a_tokenizer_that_transformers_would_rebuild_is_read_from_its_file(directory, tmp_path):
    import tokenizers

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<end>": 0, "Tom": 1, "has": 2, "?": 3}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    AutoModelForCausalLM.from_pretrained(directory).save_pretrained(tmp_path)
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>").save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("Tom has").input_ids != [1, 2]  # the trap
    policy = loaded(tmp_path)
    assert policy.read_prompts(["Tom has"])["prompt_ids"].tolist() == [[1, 2]]
    assert 0 in policy.stop_tokens
    assert policy.pad_token == 0  # the tokenizer has none


def test_stop_tokens_are_the_tokenizers_and_the_generation_configs(directory, tmp_path, policy):
    ends = policy.tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    assert policy.stop_tokens == tuple(sorted(ends))
    model = AutoModelForCausalLM.from_pretrained(directory)
    model.generation_config.eos_token_id = [77, 10**6, -1]  # the others are none of the model's
    assert CausalLMPolicy.from_model(model, policy.tokenizer).stop_tokens == tuple(sorted({ends[1], 77}))
    model.generation_config.eos_token_id = None
    nameless = copy.deepcopy(policy.tokenizer)
    nameless.eos_token = None
    assert "that ends an answer" in refused(CausalLMPolicy.from_model, model, nameless)


def test_a_model_that_lacks_weights_is_refused(directory, tmp_path):
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert "lacks 1, such as model.norm.weight" in refused(CausalLMPolicy(str(tmp_path)).load)


def test_no_code_of_a_repository_is_run(directory, tmp_path):
    evil = tmp_path / "evil"
    shutil.copytree(directory, evil)
    values = json.loads((evil / "config.json").read_text())
    values["model_type"] = "evil"
    values["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (evil / "config.json").write_text(json.dumps(values))
    (evil / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises((OSError, ValueError)):
        CausalLMPolicy(str(evil)).load()
    assert not (tmp_path / "ran").exists()


def test_model_init_kwargs_choose_the_revision(directory, tmp_path, monkeypatch):
    """Two revisions in the hub's cache, told apart by their weights; the tokenizer and the origin follow."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("lightning_cgrpo.core.json_client.getproxies", dict)
    cache = tmp_path / "cache" / "models--some--model"
    for number, revision in enumerate(("main", "v2"), 1):
        commit = str(number) * 40
        shutil.copytree(directory, cache / "snapshots" / commit)
        (cache / "refs").mkdir(exist_ok=True)
        (cache / "refs" / revision).write_text(commit)
    state = cache / "snapshots" / ("2" * 40)
    other = AutoModelForCausalLM.from_pretrained(state)
    with torch.no_grad():
        other.get_input_embeddings().weight.add_(1)
    other.save_pretrained(state)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    first, second = (loaded("some/model", model_init_kwargs=chosen) for chosen in ({}, {"revision": "v2"}))
    weights = [policy.model.get_input_embeddings().weight for policy in (first, second)]
    torch.testing.assert_close(weights[0] + 1, weights[1])
    assert first.origin.path.endswith("1" * 40) and second.origin.path.endswith("2" * 40)


def test_model_init_kwargs_leave_the_policys_own_settings(directory):
    with pytest.raises(UserError, match="without trust_remote_code"):
        CausalLMPolicy(str(directory), model_init_kwargs={"trust_remote_code": True})
    with pytest.raises(UserError, match="no_such_argument"):
        CausalLMPolicy(str(directory), model_init_kwargs={"no_such_argument": 1}).load()


@pytest.mark.parametrize(
    ("policy", "results"),
    [
        (CausalLMPolicy("packaged:word-problems"), RESULTS / "gsm8k" / "paper"),
        (VisionLanguagePolicy("packaged:driver"), RESULTS / "navsim" / "main"),
    ],
)
def test_a_policy_knows_its_starting_weights(policy, results):
    assert policy.origin is None
    policy.load()
    assert policy.origin is not None and policy.origin.name == policy.name
    saved = sorted((results / "runs").glob("*.json"))
    assert saved and all(policy.origin.fingerprint in file.read_text() for file in saved)


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "gate_up_proj"], ["down_proj"]])
def test_adapters_on_experts_are_merged(directory, targets, tmp_path):
    lora = LoRA(rank=2, target_modules=targets)
    policy = CausalLMPolicy.from_model(build("qwen3_moe"), AutoTokenizer.from_pretrained(directory), lora=lora)
    perturb(policy)
    policy.save_pretrained(tmp_path, merge=True)
    ids = torch.tensor([[5, 6, 7, 8]])
    merged = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(merged(ids).logits, policy.model(ids).logits, rtol=0, atol=1e-4)
        with policy.model.disable_adapter():
            assert (policy.model(ids).logits - merged(ids).logits).abs().max() > 1e-2
    written = load_file(tmp_path / "model.safetensors")
    pushed = written_tensors(policy.model)
    assert pushed.keys() == written.keys()
    assert all(torch.equal(pushed[name], weight) for name, weight in written.items())


@pytest.mark.parametrize("tying", [False, True])
@pytest.mark.parametrize(
    ("name", "adapters"),
    [
        ("mine", {"target_modules": ["q_proj"]}),
        ("default", {"target_modules": ["embed_tokens"]}),
        ("default", {"target_modules": ["q_proj", "lm_head"]}),
        ("default", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}),
    ],
)
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
def test_adapters_of_peft_are_read_again(directory, name, adapters, tying, tmp_path):
    """With peft's `ensure_weight_tying`, both layers share adapters; one weight can't hold those of one layer."""
    policy = CausalLMPolicy.from_model(*adapted(directory, name, ensure_weight_tying=tying, **adapters))
    perturb(policy)
    policy.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "adapter_model.safetensors").is_file() and not (tmp_path / "saved" / name).exists()
    read = loaded(tmp_path / "saved")
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        torch.testing.assert_close(read.model(ids).logits, policy.model(ids).logits)
    if {"embed_tokens", "lm_head"} & {*adapters["target_modules"]}:
        with pytest.raises(UserError, match="whose weight other layers share"):
            written_tensors(policy.model)


def test_quantized_models_are_refused(directory):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model.hf_quantizer = object()  # as transformers leaves with bitsandbytes
    with pytest.raises(UserError, match="Expected weights without quantization"):
        CausalLMPolicy.from_model(model, AutoTokenizer.from_pretrained(directory))


def test_writing_adapters_does_not_ask_the_hub(directory, tmp_path, monkeypatch):
    """peft compares the embeddings with those of the base model on the hub, if it may."""
    asked = []
    monkeypatch.setattr("peft.utils.save_and_load.check_file_exists_on_hf_hub", lambda *name, **_: asked.append(name))
    policy = loaded(directory, lora=LoRA(rank=2))
    policy.model.peft_config["default"].base_model_name_or_path = "owner/model"
    policy.save_pretrained(tmp_path)
    assert (tmp_path / "adapter_model.safetensors").is_file() and not asked
