"""The policy over Qwen2.5-VL: equal to transformers' own passes, image by image."""

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")
image = pytest.importorskip("PIL.Image")


from lightning_cgrpo.errors import UserError  # noqa: E402
from lightning_cgrpo.policies.tiny.vision import make_tiny_vision_model  # noqa: E402
from lightning_cgrpo.policies.vision_language import PLACEHOLDER, VisionLanguagePolicy  # noqa: E402
from lightning_cgrpo.rollout import Rollouts  # noqa: E402
from lightning_cgrpo.samplers.engine import Sampling  # noqa: E402
from lightning_cgrpo.samplers.transformers_engine import TransformersEngine  # noqa: E402


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_tiny_vision_model(tmp_path_factory.mktemp("models") / "tiny", hidden_size=32)


@pytest.fixture(scope="module")
def policy(directory):
    policy = VisionLanguagePolicy(str(directory), temperature=0.7, dtype="float64")
    policy.load()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(3)  # far from uniform
    return policy


def picture(width, height, seed):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def message(*parts):
    content = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image", "image": p} for p in parts]
    return [{"role": "user", "content": content}]


PROMPTS = [
    message("Where to?", picture(64, 32, 0), "and", picture(32, 32, 1)),
    message(picture(96, 64, 2), "Now?"),
    [{"role": "user", "content": "No picture."}],
]


def rollouts(policy, prompts, group_size=2, steps=5):
    tokens, inputs = policy.read_prompts(prompts)
    ids, mask = policy.padded(tokens)
    draw = torch.Generator().manual_seed(3)
    actions = torch.randint(3, 250, (len(prompts), group_size, steps), generator=draw)
    actions[0, 0, 2] = policy.image_token  # an answer may hold anything
    lengths = torch.randint(1, steps + 1, (len(prompts), group_size, 1), generator=draw)
    lengths[0, 0] = steps
    taken = torch.arange(steps) < lengths
    return Rollouts(actions, taken, {"prompt_ids": ids, "prompt_mask": mask, **inputs})


def by_transformers(policy, prompt, answer):
    """Log-probabilities and entropies of one answer, by the model's own pass over prompt and answer."""
    images = [part["image"] for m in prompt if not isinstance(m["content"], str) for part in m["content"]
              if part["type"] == "image"]  # fmt: skip
    (tokens,), _ = policy.read_prompts([prompt])
    ids = torch.tensor([[*tokens, *answer.tolist()]])
    if images:
        found = policy.image_processor(images=images, return_tensors="pt")
        kinds = torch.zeros_like(ids, dtype=torch.int32)
        kinds[0, : len(tokens)] = ids[0, : len(tokens)] == policy.image_token
        features = policy.model.model.get_image_features(found["pixel_values"], found["image_grid_thw"])
        embedded = policy.model.get_input_embeddings()(ids)
        embedded = embedded.masked_scatter(
            kinds[..., None].bool(), torch.cat(features.pooler_output).to(embedded.dtype)
        )
        positions, _ = policy.model.model.get_rope_index(ids, kinds, image_grid_thw=found["image_grid_thw"])
        logits = policy.model(inputs_embeds=embedded, position_ids=positions).logits
    else:
        logits = policy.model(input_ids=ids).logits
    logits = logits[0, len(tokens) - 1 : -1] / policy.temperature
    values = logits.log_softmax(-1)
    return values.gather(1, answer[:, None])[:, 0], -(values.exp() * values).sum(-1)


def test_log_probs_entropies_and_gradients_are_those_of_transformers(policy):
    rolled = rollouts(policy, PROMPTS)
    output = policy(policy.examples(rolled))
    weights = torch.randn(output.log_probs.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    mask = rolled.mask.flatten(0, 1)
    policy.zero_grad()
    (torch.where(mask, output.log_probs + 0.1 * output.entropy, 0) * weights).sum().backward()
    ours = {name: parameter.grad.clone() for name, parameter in policy.named_parameters() if parameter.grad is not None}
    policy.zero_grad()
    total = 0
    for row, (prompt, answer) in enumerate((p, g) for p in range(3) for g in range(2)):
        length = int(rolled.lengths[prompt, answer])
        log_probs, entropy = by_transformers(policy, PROMPTS[prompt], rolled.actions[prompt, answer, :length])
        torch.testing.assert_close(output.log_probs[row, :length], log_probs, atol=1e-5, rtol=0)
        torch.testing.assert_close(output.entropy[row, :length], entropy, atol=1e-5, rtol=0)
        total = total + ((log_probs + 0.1 * entropy) * weights[row, :length]).sum()
    total.backward()
    assert any(name.startswith("model.model.visual") for name in ours), "the vision tower learns"
    for name, parameter in policy.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(ours[name], parameter.grad, atol=1e-4, rtol=1e-4)


def test_generation_continues_what_training_sees(policy):
    """Each token is chosen by its draw from the distribution that the training pass has there."""
    tokens, inputs = policy.read_prompts(PROMPTS)
    draws = torch.rand(3, 2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    answers = TransformersEngine().generate(policy, tokens, 2, Sampling(6, min_new_tokens=6), draws, inputs).tokens
    vocabulary = policy.model.get_input_embeddings().num_embeddings
    for prompt, answer, step in ((0, 0, 0), (0, 1, 4), (1, 0, 2), (2, 1, 3)):
        before = answers[prompt, answer, :step].expand(vocabulary, -1)
        every = torch.cat([before, torch.arange(vocabulary)[:, None]], 1)[None]
        ids, mask = policy.padded(tokens[prompt : prompt + 1])
        of_prompt = {name: tensor[prompt : prompt + 1] for name, tensor in inputs.items()}
        rolled = Rollouts(every, torch.ones_like(every).bool(), {"prompt_ids": ids, "prompt_mask": mask, **of_prompt})
        with torch.no_grad():
            expected = policy(policy.examples(rolled)).log_probs[:, -1].exp()
        expected[[policy.pad_token, *policy.stop_tokens]] = 0
        cumulative = (expected / expected.sum()).cumsum(0)
        chosen = int(answers[prompt, answer, step])
        assert (
            cumulative[chosen - 1] - 1e-6 <= draws[prompt, answer, step] <= cumulative[chosen] + 1e-6
        )  # norms are float32 in transformers


def test_prompts(policy):
    (tokens,), inputs = policy.read_prompts(PROMPTS[:1])
    merge = policy.network.config.vision_config.spatial_merge_size**2
    assert tokens.count(policy.image_token) * merge == int(inputs["grids"].prod(-1).sum()) == inputs["patches"].shape[1]
    same, _ = policy.read_prompts(
        [message("Where to?", image.fromarray(picture(64, 32, 0)), "and", picture(32, 32, 1))]
    )
    assert same == [tokens]
    assert policy.read_prompts(PROMPTS[2:])[1] == {}
    with pytest.raises(UserError, match="prompt 7 as images, 0, but got 1"):
        policy.read_prompts([message(f"a {PLACEHOLDER}")], torch.tensor([7]))
    with pytest.raises(UserError, match="Expected readable images in prompt 0"):
        policy.read_prompts([message("a", "b") + message({"no": "image"})])


def test_other_models_are_refused(tmp_path):
    from lightning_cgrpo.policies.tiny.text import make_tiny_model

    with pytest.raises(UserError, match="qwen2"):
        VisionLanguagePolicy(str(make_tiny_model(tmp_path / "text", hidden_size=32, layers=1))).load()


def test_a_model_that_cannot_share_prompts_pads_them_and_says_why(directory):
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    config = transformers.AutoConfig.from_pretrained(directory)
    config.text_config.layer_types = ["sliding_attention"] * config.text_config.num_hidden_layers
    config.text_config.sliding_window = 4
    model = transformers.Qwen2_5_VLForConditionalGeneration._from_config(config)
    with pytest.warns(UserWarning, match="own copy of the prompt, because its layers have sliding_attention"):
        assert not VisionLanguagePolicy.from_model(model, tokenizer, None).shares_prompts


def test_adapters_keep_the_size_of_images(directory, tmp_path):
    pytest.importorskip("peft")
    from lightning_cgrpo.policies.pretrained import LoRA

    policy = VisionLanguagePolicy(str(directory), lora=LoRA(rank=2), max_pixels=32 * 32)
    policy.load()
    policy.save_pretrained(tmp_path / "adapters")
    again = VisionLanguagePolicy(str(tmp_path / "adapters"))
    again.load()
    prompt = [message(picture(128, 128, 0))]
    assert again.read_prompts(prompt)[0] == policy.read_prompts(prompt)[0]
