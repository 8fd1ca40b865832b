"""Counts of models that are never built, against those of real ones."""

import json

import pytest
import torch

from lightning_cgrpo import CausalLMPolicy
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.planning.lengths import image_patches, pixel_bounds
from lightning_cgrpo.planning.sizes import language_model_sizes, read_config
from lightning_cgrpo.policies.pretrained import LoRA
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.policies.tiny.vision import make_tiny_vision_model
from lightning_cgrpo.policies.vision_language import VisionLanguagePolicy
from lightning_cgrpo.tasks.gsm8k.from_scratch import FromScratch
from tests.policies import tiny_families

QWEN_05B = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
    "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True,
}  # fmt: skip
LORA = LoRA(rank=4)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model") / "m", layers=3)


@pytest.fixture(scope="module")
def vision_directory(tmp_path_factory):
    return make_tiny_vision_model(tmp_path_factory.mktemp("vision") / "m")


@pytest.mark.parametrize("options", [{}, {"lora": LORA}, {"dtype": "bfloat16"}, {"lora": LORA, "dtype": "bfloat16"}])
def test_counts_are_those_of_the_loaded_model(directory, options):
    policy = CausalLMPolicy(str(directory), **options)
    sizes = language_model_sizes(policy)
    assert policy.model is None  # nothing was read
    policy.load()
    own = list(policy.parameters())
    trained = [p for p in own if p.requires_grad]
    assert sizes.parameters == sum(p.numel() for p in own)
    assert sizes.weight_bytes == sum(p.numel() * p.element_size() for p in own)
    assert sizes.trainable == sum(p.numel() for p in trained)
    assert sizes.trainable_bytes == sum(p.numel() * p.element_size() for p in trained)
    assert sizes.largest == max(p.numel() for p in trained)
    assert sizes.trains_base == ("lora" not in options)
    assert sizes.obstacle is None


def test_counts_of_a_vision_language_model(vision_directory):
    policy = VisionLanguagePolicy(str(vision_directory))
    sizes = language_model_sizes(policy)
    policy.load()
    visual = policy.network.model.visual
    assert sizes.parameters == sum(p.numel() for p in policy.parameters())
    assert sizes.vision.parameters == sum(p.numel() for p in visual.parameters())
    assert sizes.vision.tower.layer == sum(p.numel() for p in visual.blocks[0].parameters())
    assert sizes.vision.tower.layers == len(visual.blocks)
    assert sizes.decoder.layers == len(policy.network.model.language_model.layers)


@pytest.mark.parametrize("options", [{}, {"min_pixels": 30_000}, {"max_pixels": 20_000}])
def test_patches_are_those_of_the_processor(vision_directory, options):
    policy = VisionLanguagePolicy(str(vision_directory), **options)
    vision, bounds = language_model_sizes(policy).vision, pixel_bounds(policy)
    policy.load()
    for size in ((128, 256), (100, 333), (20, 64)):
        patches, _ = policy._patches([torch.zeros(*size, 3, dtype=torch.uint8).numpy()], 0)
        assert image_patches(vision, [size], bounds) == len(patches)
    assert pixel_bounds(policy) == bounds


@pytest.mark.parametrize("family", ["qwen3_vl", "internvl"])
def test_counts_and_patches_of_other_families(tmp_path, family):
    policy = VisionLanguagePolicy(str(tiny_families.write(tmp_path, family)))
    sizes = language_model_sizes(policy)
    bounds = pixel_bounds(policy, sizes.vision.family)
    policy.load()
    towers = policy.family.towers
    assert sizes.parameters == sum(p.numel() for p in policy.parameters())
    assert sizes.vision.parameters == sum(p.numel() for tower in towers for p in tower.parameters())
    assert sizes.vision.tower.layer == sum(p.numel() for p in policy.family.layers[0].parameters())
    assert sizes.decoder.layer == sum(p.numel() for p in policy.network.model.language_model.layers[0].parameters())
    assert sizes.obstacle is None
    for size in ((128, 256), (100, 333), (20, 64)):
        image = torch.zeros(*size, 3, dtype=torch.uint8).numpy()
        _, inputs = policy.read_prompts([[{"role": "user", "content": [{"type": "image", "image": image}]}]])
        tokens = int(policy.family.tokens(inputs["grids"]).sum())
        assert image_patches(sizes.vision, [size], bounds) == tokens * sizes.vision.merge**2


@pytest.mark.parametrize("family", ["qwen3_vl", "internvl"])
def test_a_released_model_is_planned_from_its_config_alone(tmp_path, family):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    policy = VisionLanguagePolicy("hub/model")
    vision = language_model_sizes(policy, tmp_path).vision
    patches = image_patches(vision, [(448, 896)], pixel_bounds(policy, vision.family))
    assert patches == {"qwen3_vl": 28 * 56, "internvl": 3 * 32 * 32}[family]


def test_other_families_are_not_planned(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llava"}))
    with pytest.raises(UserError, match="internvl, qwen2_5_vl or qwen3_vl, but 'hub/model' is of llava"):
        language_model_sizes(VisionLanguagePolicy("hub/model"), tmp_path)


def test_images_that_cannot_be_scaled(vision_directory):
    policy = VisionLanguagePolicy(str(vision_directory))
    with pytest.raises(UserError, match="Expected images that can be scaled, but got 10 x 9000"):
        image_patches(language_model_sizes(policy).vision, [(10, 9000)], pixel_bounds(policy))


def test_a_model_that_a_policy_makes_itself():
    sizes = language_model_sizes(FromScratch(layers=1))
    policy = FromScratch(layers=1)
    policy.load()
    assert sizes.parameters == sum(p.numel() for p in policy.parameters())


def test_a_config_alone_is_enough(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN_05B))
    policy = CausalLMPolicy("Qwen/Qwen2.5-0.5B-Instruct")
    for place in (tmp_path, tmp_path / "config.json"):
        sizes = language_model_sizes(policy, place)
        assert sizes.parameters == 494_032_768  # of the released model
        assert sizes.weight_bytes == 4 * sizes.parameters
    alone = language_model_sizes(CausalLMPolicy(str(tmp_path)))
    assert alone.parameters == sizes.parameters
    assert (alone.decoder.heads, alone.decoder.kv_heads, alone.decoder.head_size) == (14, 2, 64)


def test_dtype_as_saved(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**QWEN_05B, "num_hidden_layers": 1, "dtype": "bfloat16"}))
    assert language_model_sizes(CausalLMPolicy(str(tmp_path), dtype=None)).element == 2
    assert language_model_sizes(CausalLMPolicy(str(tmp_path))).element == 4


def test_saved_adapters_are_counted_with_their_base(directory, tmp_path):
    policy = CausalLMPolicy(str(directory), lora=LORA)
    policy.load()
    policy.save_pretrained(tmp_path / "adapters")
    sizes = language_model_sizes(CausalLMPolicy(str(tmp_path / "adapters")))
    assert sizes.parameters == sum(p.numel() for p in policy.parameters())
    assert not sizes.trains_base


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), ("{", "Expecting"), ("[]", "names no model_type"), ('{"model_type": "no"}', "no")],
)
def test_a_config_that_cannot_be_read(tmp_path, content, message):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=f"Expected --model-config to be a config.json.*{message}"):
        read_config(path)


def test_a_missing_model_says_what_to_try(tmp_path):
    with pytest.raises(UserError, match="try --model-config FILE"):
        language_model_sizes(CausalLMPolicy(str(tmp_path / "nowhere")))


def test_a_model_that_is_no_language_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(UserError, match="AutoModelForCausalLM"):
        language_model_sizes(CausalLMPolicy(str(tmp_path)))


def test_experts_are_refused(tmp_path):
    small = {"hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 64, "num_local_experts": 2}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mixtral", **small}))
    with pytest.raises(UserError, match="mixture of experts"):
        language_model_sizes(CausalLMPolicy(str(tmp_path)))
