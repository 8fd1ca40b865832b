"""Qwen2.5-VL, Qwen3-VL and InternVL as policies: equal to transformers' own passes in float64."""

import copy
import functools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl
from transformers.models.qwen3_vl import modeling_qwen3_vl
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import Rollouts, prompt_tokens
from lightning_cgrpo.policies.adapters import LoRA
from lightning_cgrpo.policies.continuation import PromptBatch
from lightning_cgrpo.policies.vision_language import PLACEHOLDER, VisionLanguagePolicy, images_of
from lightning_cgrpo.samplers import transformers_engine
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.transformers_engine import TransformersEngine
from tests.policies import small_policies, tiny_families
from tests.policies.small_policies import exact_norms, gradients, perturb

FAMILIES = ("qwen2_5_vl", "qwen3_vl", "internvl")
every_family = pytest.mark.parametrize("family", FAMILIES)
SLIDING = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
"""The last two of three layers of InternVL's Qwen2 see four tokens."""


def picture(width, height, seed):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def message(*parts):
    content = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image", "image": p} for p in parts]
    return [{"role": "user", "content": content}]


PROMPTS = [
    message("Where to?", picture(64, 32, 0)),
    message(picture(96, 64, 1), "or", picture(32, 32, 2), "and", picture(32, 96, 3), "Now?"),
    [{"role": "user", "content": "No picture."}],
]


def rotated(query, key, cos, sin):
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return tuple(part * cos + modeling_qwen3_vl.rotate_half(part) * sin for part in (query, key))


@pytest.fixture(scope="module", autouse=True)
def float64_rotations():
    """transformers rounds to float32, whatever the dtype, and rounding would hide a fault."""
    with pytest.MonkeyPatch.context() as patch:
        for modeling in (modeling_qwen2_5_vl, modeling_qwen3_vl):
            patch.setattr(modeling, "apply_rotary_pos_emb_vision", rotated)
        yield


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    root = tmp_path_factory.mktemp("families")
    found = {family: tiny_families.write(root / family, family) for family in FAMILIES}
    found["sliding"] = tiny_families.write(root / "sliding", "internvl", **SLIDING)
    found["internvl3.5"] = tiny_families.write(root / "internvl3.5", "internvl", model_type="qwen3", head_dim=8)
    return found


@functools.cache
def read(directory, **options):
    return small_policies.loaded(directory, VisionLanguagePolicy, **{"temperature": 0.7, "dtype": "float64"} | options)


def loaded(directory, **options):
    policy = copy.deepcopy(read(str(directory), **options))
    exact_norms(policy)
    return policy


EACH = [f"{family}-{way}" for family in FAMILIES for way in ("shared", "padded")]


@pytest.fixture(scope="module", params=[*EACH, "internvl3.5-shared", "sliding-shared"])
def policy(directories, request):
    family, way = request.param.split("-")
    policy = loaded(directories[family], share_prompts=way == "shared")
    assert policy.shares_prompts == (way == "shared" and family != "sliding")
    return policy


def rollouts(policy, prompts=PROMPTS, group_size=2, steps=5):
    draw = torch.Generator().manual_seed(3)
    actions = torch.randint(10, 250, (len(prompts), group_size, steps), generator=draw)
    lengths = torch.tensor([[5, 2], [1, 4], [3, 5]])[: len(prompts), :group_size, None]
    return Rollouts(actions, torch.arange(steps) < lengths, policy.read_prompts(prompts))


def by_transformers(policy, prompt, answer):
    """Log-probabilities and entropies of one answer, by transformers' forward of pixels and tokens; all of a step."""
    (tokens,) = prompt_tokens(policy.read_prompts([prompt]))
    ids = torch.tensor([[*tokens, *answer.tolist()]])
    given, images = {}, images_of(prompt)
    if images and policy.network.config.model_type != "internvl":
        given = dict(policy.image_processor(images=images, return_tensors="pt"))
        given["mm_token_type_ids"] = (ids == policy.image_token).int()
    elif images:
        read_images = policy.image_processor(images, return_tensors="pt", crop_to_patches=True)
        given["pixel_values"] = read_images["pixel_values"]
    logits = policy.network(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **given).logits
    values = (logits[0, len(tokens) - 1 : -1] / policy.temperature).log_softmax(-1)
    return values.gather(1, answer[:, None])[:, 0], -(values.exp() * values).sum(-1), values


def test_log_probs_entropies_and_gradients_are_those_of_transformers(policy):
    rolled = rollouts(policy)
    policy.zero_grad()
    reference = policy.reference()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(1.05)
        beside = reference(policy.examples(rolled))
    output = policy(policy.examples(rolled), beside)
    weights = torch.randn(output.log_probs.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    mask = rolled.mask.flatten(0, 1)
    (torch.where(mask, output.log_probs + 0.1 * output.entropy + output.kl, 0) * weights).sum().backward()
    ours, total = gradients(policy), 0
    for row, (prompt, answer) in enumerate((p, g) for p in range(3) for g in range(2)):
        length = int(rolled.lengths[prompt, answer])
        actions = rolled.actions[prompt, answer, :length]
        log_probs, entropy, log_p = by_transformers(policy, PROMPTS[prompt], actions)
        with torch.no_grad():
            log_q = by_transformers(reference, PROMPTS[prompt], actions)[2]
        kl = (log_p.exp() * (log_p - log_q)).sum(-1)
        torch.testing.assert_close(output.kl[row, :length], kl, atol=1e-10, rtol=0)
        torch.testing.assert_close(output.log_probs[row, :length], log_probs, atol=1e-10, rtol=0)
        torch.testing.assert_close(output.entropy[row, :length], entropy, atol=1e-10, rtol=0)
        total = total + ((log_probs + 0.1 * entropy + kl) * weights[row, :length]).sum()
    total.backward()
    theirs = gradients(policy)
    seen = {id(p) for tower in policy.family.towers for p in tower.parameters()}
    learning = [id(p) in seen and name in theirs and theirs[name].any() for name, p in policy.named_parameters()]
    assert sum(learning) > len(seen) / 2, "the vision tower learns"
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


def test_rollouts_have_the_log_probs_of_training(policy):
    """Step by step through the cache, with answers that end and leave the batch."""
    rolled = rollouts(policy)
    actions, lengths = rolled.actions.flatten(0, 1), rolled.lengths.flatten()
    expected = policy(policy.examples(rolled)).log_probs
    rows = torch.arange(6)
    with torch.no_grad():
        prompts = rolled.inputs["prompt_mask"].sum(-1)
        steps = policy.continuation(PromptBatch(rolled.inputs, prompts, torch.full_like(prompts, 5), 2))
        logits = steps.read().repeat_interleave(2, 0)
        for step in range(5):
            found = (logits / policy.temperature).log_softmax(-1).gather(1, actions[rows, step, None])[:, 0]
            torch.testing.assert_close(found, expected[rows, step], atol=1e-10, rtol=0)
            kept = (lengths[rows] > step + 1).nonzero()[:, 0]
            rows = rows[kept]
            if len(rows):
                logits = steps.next(kept, actions[rows, step])
    assert not len(rows)


def test_prompts_that_wait_for_a_place_have_the_same_answers(policy, monkeypatch):
    """Other prompts' images, and none, are read while answers go on; also into pages."""
    inputs = policy.read_prompts([*PROMPTS, *PROMPTS[::-1]])
    draws = torch.rand(6, 2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    limits, found = torch.tensor([3, 9, 2, 8, 1, 5]), []
    for size, pages in ((None, set()), (4, set()), (4, {"cpu"})):
        monkeypatch.setattr(transformers_engine, "IN_PAGES", pages)
        engine = TransformersEngine()
        engine.memory = 2**26
        found.append(engine.generate(policy, inputs, 2, Sampling(9, batch_size=size), draws, limits))
    for other in found[1:]:
        assert torch.equal(other.actions, found[0].actions) and torch.equal(other.mask, found[0].mask)


@every_family
def test_a_placeholder_in_an_answer_is_an_ordinary_token(directories, family):
    found = []
    for shared in (True, False):
        policy = loaded(directories[family], share_prompts=shared)
        rolled = rollouts(policy)
        rolled.actions[:, 0, 1:3] = policy.image_token
        found.append(policy(policy.examples(rolled)).log_probs[rolled.mask.flatten(0, 1)])
    torch.testing.assert_close(*found, atol=1e-10, rtol=0)


def test_a_minibatch_reads_its_own_prompts_alone(policy):
    examples = policy.examples(rollouts(policy))
    whole, rows = policy(examples).log_probs, torch.tensor([5, 2, 3])
    mask = examples.mask[rows]
    torch.testing.assert_close(policy(examples[rows]).log_probs[mask], whole[rows][mask], atol=1e-10, rtol=0)


@every_family
def test_checkpoints_change_no_gradient(directories, family):
    found = []
    for checkpointing in (False, True):
        policy = loaded(directories[family], gradient_checkpointing=checkpointing)
        policy(policy.examples(rollouts(policy))).log_probs.sum().backward()
        found.append(gradients(policy))
    torch.testing.assert_close(found[1], found[0], atol=1e-10, rtol=1e-10)


@every_family
def test_shards_are_gathered_without_images_too(directories, family, monkeypatch):
    """Every part of the towers gets a gradient, because all processes gather all parts."""
    policy = loaded(directories[family])
    trained = [parameter for tower in policy.family.towers for parameter in tower.parameters()]
    before = policy(policy.examples(rollouts(policy, PROMPTS[2:]))).log_probs
    before.sum().backward()
    assert trained and all(parameter.grad is not None and not parameter.grad.any() for parameter in trained)
    policy.zero_grad()
    monkeypatch.setattr("lightning_cgrpo.policies.vision_language.in_shards", lambda layer: True)
    after = policy(policy.examples(rollouts(policy, PROMPTS[2:]))).log_probs
    assert torch.equal(before, after)
    after.sum().backward()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in trained)


@pytest.mark.parametrize(("kind", "family"), [(Qwen3VLProcessor, "qwen3_vl"), (InternVLProcessor, "internvl")])
def test_an_image_has_the_text_of_transformers_processor(directories, kind, family):
    """The processors themselves need torchvision for videos."""
    policy = loaded(directories[family])
    prompt = message("a", picture(96, 64, 1), "b")
    cropped = {"crop_to_patches": True} if family == "internvl" else {}  # as the processor asks
    found = policy.image_processor(images_of(prompt), return_tensors="pt", **cropped)
    special = {"image_processor": policy.image_processor, "image_token": policy.family.placeholder}
    special |= {"image_seq_length": 4, "start_image_token": "<img>", "end_image_token": "</img>"}
    expected = kind.replace_image_token(SimpleNamespace(**special), found, 0)
    text = policy.tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    text = text.replace(policy.family.placeholder, expected)
    assert prompt_tokens(policy.read_prompts([prompt])) == [policy.tokenizer(text).input_ids]


@every_family
def test_bounds_of_the_images(directories, family):
    side = 16 if family == "internvl" else 8
    for bounds, low, high in (({"max_pixels": 32 * 32}, 0, 32 * 32), ({"min_pixels": 64 * 64}, 64 * 64, 80 * 80)):
        policy = loaded(directories[family], **bounds)
        inputs = policy.read_prompts([message(picture(48, 48, 0))])
        squares = int(inputs["grids"].prod())
        assert inputs["patches"].shape[1] == squares
        without_thumbnail = squares - (family == "internvl" and squares > 1)
        assert low <= without_thumbnail * side**2 <= high


@pytest.mark.parametrize("lora", [None, LoRA(rank=2)], ids=["whole", "adapters"])
@every_family
def test_saved_and_read_again(directories, family, lora, tmp_path):
    policy = loaded(directories[family], lora=lora, max_pixels=32 * 32)
    if lora is not None:
        perturb(policy)
    rolled = rollouts(policy)
    output = policy(policy.examples(rolled)).log_probs
    log_probs, *_ = by_transformers(policy, PROMPTS[1], rolled.actions[1, 1, :4])
    torch.testing.assert_close(output[3, :4], log_probs, atol=1e-10, rtol=0)
    policy.save_pretrained(tmp_path / "saved")
    again = loaded(tmp_path / "saved")
    assert again.image_processor.to_dict() == policy.image_processor.to_dict()
    torch.testing.assert_close(again(again.examples(rollouts(again))).log_probs, output, atol=1e-10, rtol=0)


def test_loading_compares_a_prompt_with_an_image(directories, monkeypatch):
    whole = VisionLanguagePolicy.prompt_positions
    monkeypatch.setattr(
        VisionLanguagePolicy,
        "prompt_positions",
        lambda self, *given: found * 2 if (found := whole(self, *given)) is not None else None,
    )
    with pytest.warns(UserWarning, match="its log-probabilities .* differ by .* when prompts are shared"):
        assert not read.__wrapped__(str(directories["qwen3_vl"])).shares_prompts


@pytest.mark.parametrize("family", ["llava", "gemma3", "qwen2"])
def test_other_families_are_refused_before_weights_are_read(tmp_path, family):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    with pytest.raises(UserError, match=f"internvl, qwen2_5_vl or qwen3_vl, but '.*' is of {family}"):
        VisionLanguagePolicy(str(tmp_path)).load()


def test_prompts(directories):
    policy = loaded(directories["qwen2_5_vl"])
    first = message("Where to?", picture(64, 32, 0), "and", picture(32, 32, 1))
    inputs = policy.read_prompts([first])
    (tokens,) = prompt_tokens(inputs)
    merge = policy.network.config.vision_config.spatial_merge_size**2
    assert tokens.count(policy.image_token) * merge == int(inputs["grids"].prod(-1).sum()) == inputs["patches"].shape[1]
    first[0]["content"][1]["image"] = Image.fromarray(picture(64, 32, 0))
    assert prompt_tokens(policy.read_prompts([first])) == [tokens]
    assert policy.read_prompts(PROMPTS[2:]).keys() == {"prompt_ids", "prompt_mask"}
    with pytest.raises(UserError, match="prompt 7 as images, 0, but got 1"):
        policy.read_prompts([message(f"a {PLACEHOLDER}")], torch.tensor([7]))
    with pytest.raises(UserError, match="Expected readable images in prompt 0"):
        policy.read_prompts([message("a", "b") + message({"no": "image"})])


def test_images_come_in_any_form_and_from_no_other_place(directories, tmp_path):
    """A path needs the policy's folder."""
    pixels = picture(64, 32, 0)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    policy = loaded(directories["qwen2_5_vl"], image_folder=str(tmp_path))

    def patches(form):
        return policy.read_prompts([[{"role": "user", "content": [{"type": "image", "image": form}]}]])["patches"]

    expected = patches(pixels)
    for form in ("a.png", (tmp_path / "a.png").read_bytes(), pixels.astype(np.float32) / 255):
        assert torch.equal(patches(form), expected)
    for form in ("https://example.org/a.png", str(directories["qwen2_5_vl"] / "a.png")):
        with pytest.raises(UserError, match="Expected readable images in prompt 0"):
            patches(form)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"type": "image", "url": "https://example.org/a.png"}, "a part of type 'image' has no 'image', but type, url"),
        ({"type": "image", "image": None, "path": "a.png"}, "has no 'image'"),
        ({"type": "image_url", "image_url": {"url": "a.png"}}, "the type 'image_url', not 'text' or 'image'"),
        ({"type": "video", "video": "a.mp4"}, "the type 'video', not 'text' or 'image'"),
    ],
)
def test_parts_that_the_policy_would_not_see_are_refused(directories, part, told):
    """Chat templates skip them without a word."""
    policy = loaded(directories["qwen2_5_vl"])
    prompt = [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]
    with pytest.raises(UserError, match=f"Expected readable images in prompt 0, but got: .*{told}"):
        policy.read_prompts([prompt])


def test_a_processors_own_code_is_never_run(directories, tmp_path, monkeypatch):
    """Whatever standard input says."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    folder = tmp_path / "model"
    loaded(directories["qwen2_5_vl"]).save_pretrained(folder)
    settings = {"image_processor_type": "Own", "auto_map": {"AutoImageProcessor": "own.Own"}}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    (folder / "own.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\nfrom transformers import Qwen2VLImageProcessorPil as Own\n"
    )
    with pytest.raises(UserError, match="to hold an image processor of transformers"):
        loaded(folder)
    assert not (tmp_path / "ran").exists()
