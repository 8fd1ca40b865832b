"""The tiny driver: its tokens, its directory, and that the one that is shipped looks at its images."""

import copy
import re

import pytest
import torch

from lightning_cgrpo import DrivingTask, GeneratedScenes, GenerationSampler, Observations, VisionLanguagePolicy
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.datamodules import NavsimDataModule, NavsimDemonstrationsDataModule
from lightning_cgrpo.modules.supervised import demonstration_rollouts
from lightning_cgrpo.policies.model_files import PACKAGED
from lightning_cgrpo.tasks.completions import texts
from lightning_cgrpo.tasks.driving.from_scratch import VisionFromScratch
from lightning_cgrpo.tasks.driving.moving_observations import MovingObservations
from lightning_cgrpo.tasks.driving.prompts import PromptFormat

FORM = PromptFormat(frames=1, height=64, width=64, system=False)
TEXTS = ["Lane: 9.9 -0.1. naïve 你好 🙂\n\n[1.5,-2.0], (3.14)", " ].[,-- 10.05 %", ""]


def images(chat):
    return [part for message in chat for part in message["content"] if part["type"] == "image"]


@pytest.fixture(scope="module")
def fresh():
    policy = VisionFromScratch()
    policy.load()
    return policy


@pytest.fixture(scope="module")
def shipped():
    policy = VisionLanguagePolicy("packaged:driver")
    policy.load()
    return policy.eval()


def test_numbers_are_as_many_tokens_whatever_they_are(fresh):
    """So that a waypoint's digits always stand in the same places."""
    tokenizer = fresh.tokenizer
    lengths = {len(tokenizer(f"[{x}.{x % 10},0.{x % 10}], [").input_ids) for x in range(100)}
    assert lengths == {7}
    assert len({tokenizer(f".{digit}").input_ids[0] for digit in range(10)}) == 10
    plus, minus = (tokenizer(f"[3.5,{sign}1.0], [{sign}2.0,1.0]").input_ids for sign in ("", "-"))
    assert len(plus) == len(minus)


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_survives(fresh, text):
    ids = fresh.tokenizer(text).input_ids
    assert fresh.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_an_image_of_64_by_64_is_four_tokens(fresh):
    data = NavsimDataModule(1, form=FORM, val_prompts=1)
    prompts = next(iter(data.val_dataloader()))
    inputs = fresh.read_prompts(prompts.columns["prompt"])
    assert (inputs["prompt_ids"] == fresh.image_token).sum() == 3 * 4
    assert inputs["grids"].tolist() == [[[1, 8, 8]] * 3]


def test_a_saved_directory_answers_as_before(fresh, tmp_path):
    fresh.save_pretrained(tmp_path)
    again = VisionLanguagePolicy(str(tmp_path))
    again.load()
    prompts = next(iter(NavsimDemonstrationsDataModule(2, form=FORM, human=True, train_prompts=2).train_dataloader()))
    values = [policy(policy.examples(demonstration_rollouts(policy, prompts))).log_probs for policy in (fresh, again)]
    assert torch.equal(*values)


def test_the_shipped_model_is_small_and_of_this_shape(shipped, fresh):
    assert sum(file.stat().st_size for file in (PACKAGED / "driver").iterdir()) < 4e6
    assert shipped.tokenizer.backend_tokenizer.to_str() == fresh.tokenizer.backend_tokenizer.to_str()
    sizes = [{name: tuple(p.shape) for name, p in policy.named_parameters()} for policy in (shipped, fresh)]
    assert sizes[0] == sizes[1]


def test_the_shipped_model_looks_at_its_images(shipped):
    """What sensible humans do is likelier with the images of their scene than with those of another one."""
    options = {"human": True, "train_prompts": 24, "thoughts": Observations()}
    data = NavsimDemonstrationsDataModule(24, GeneratedScenes(seed=3), FORM, **options)
    prompts = next(iter(data.train_dataloader()))
    chats, others = prompts.columns["prompt"], copy.deepcopy(prompts.columns["prompt"])
    for chat, source in zip(others, [chats[-1], *chats[:-1]], strict=True):
        for part, image in zip(images(chat), images(source), strict=True):
            part["image"] = image["image"]
    likelihood = []
    for asked in (chats, others):
        columns = {"prompt": asked, "completion": prompts.columns["completion"]}
        examples = shipped.examples(demonstration_rollouts(shipped, PromptGroups(prompts.index, columns)))
        with torch.no_grad():
            likelihood.append(torch.where(examples.mask, shipped(examples).log_probs, 0).sum(-1).mean())
    own, other = likelihood
    assert own > other + 8


@pytest.mark.slow
def test_the_shipped_model_leaves_constrained_training_something_to_do(shipped):
    """Sampled on scenes that it has not seen, it writes trajectories, of which some leave the road."""
    data = NavsimDataModule(scenes=GeneratedScenes(seed=4), form=FORM, val_prompts=48)
    prompts = next(iter(data.val_dataloader()))
    noise = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.rand((48, *shape), generator=noise, dtype=torch.float64)

    with torch.no_grad():
        signals = DrivingTask().score(prompts, GenerationSampler(max_new_tokens=80).rollout(shipped, prompts, 4, draw))
    assert signals["malformed"].value.mean() < 0.05
    assert signals["wat"].value.mean() > 0.8
    assert 0.5 < signals["drivable_area_compliance"].value.mean() < 0.93


def test_the_driver_of_two_frames_names_the_agent_ahead():
    """In its own words, in the form of the observations that it was taught, and more often than chance."""
    policy = VisionLanguagePolicy("packaged:driver-moving", temperature=0.05)
    policy.load()
    form = PromptFormat(frames=2, height=64, width=64, system=False)
    data = NavsimDataModule(scenes=GeneratedScenes(seed=4), form=form, val_prompts=24)
    prompts = next(iter(data.val_dataloader()))
    sampler = GenerationSampler(max_new_tokens=96)
    with torch.no_grad():
        answers = sampler.rollout(policy.eval(), prompts, 1, lambda *shape: torch.full((24, *shape), 0.5).double())
    agrees, observations = 0, MovingObservations()
    for scene, (answer,) in zip(prompts.columns["scene"], texts(answers), strict=True):
        said = re.search(r"Ahead: (.+?)\. In: .+?\. Light: ", answer)
        agrees += (said is not None) and (said[1] == "none") == ("Ahead: none" in observations(scene))
    assert agrees >= 17  # 85 % on 400 scenes, see docs/results/navsim/README.md
