"""Numbers are single tokens wherever they stand, and any text survives; also through a directory."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
import transformers

from lightning_cgrpo import GenerationSampler, GSM8KTask
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.datamodules import WordProblemsDataModule
from lightning_cgrpo.policies.model_files import PACKAGED
from lightning_cgrpo.tasks.gsm8k.from_scratch import FromScratch
from tests.policies.small_policies import loaded

BOUNDS = {"correctness": 0.85, "format": 0.99, "integer": 0.99}
TEXTS = [
    "Tom has 99 apples, and buys 4 more.\n",
    "<think>3+4=7, 12*8=96</think>\n<answer>96</answer>",
    "1,234.50 + 007 = naïve 你好 🙂 << >> <thinking> </answer",
    " two  spaces,\ttab\r\nand\n\n lines ",
]


class Smaller(FromScratch):
    sizes: Mapping[str, int] = {**FromScratch.sizes, "hidden_size": 16, "layers": 1, "feed_forward": 16}


@pytest.fixture(scope="module")
def policy():
    policy = Smaller()
    policy.load()
    return policy


def test_every_number_is_one_token_the_same_in_question_and_equation(policy):
    tokenizer = policy.tokenizer
    for number in range(100):
        (token,) = tokenizer(str(number)).input_ids
        for text in ("Tom has # apples.", "#+", "=(#", "<answer>#</answer>", "x#"):
            assert tokenizer(text.replace("#", str(number))).input_ids.count(token) == 1, text
    assert len({tokenizer(str(number)).input_ids[0] for number in range(100)}) == 100
    assert len(tokenizer("1234").input_ids) == 2


def test_a_saved_directory_is_read_as_it_was_written(policy, tmp_path):
    """AutoTokenizer rebuilds the tokenizer of a Qwen2 its own way; the policy notices."""
    policy.save_pretrained(tmp_path)
    again = loaded(tmp_path)
    ids = [policy.tokenizer(text).input_ids for text in TEXTS]
    assert [again.tokenizer(text).input_ids for text in TEXTS] == ids
    assert [transformers.AutoTokenizer.from_pretrained(tmp_path)(text).input_ids for text in TEXTS] != ids  # the trap
    assert again.stop_tokens == policy.stop_tokens and again.pad_token == policy.pad_token
    for name, weight in policy.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], weight)


@pytest.fixture(scope="module")
def shipped():
    return loaded("packaged:word-problems")


def test_the_shipped_model_is_small_and_has_this_tokenizer(shipped):
    assert sum(file.stat().st_size for file in (PACKAGED / "word-problems").iterdir()) < 4e6
    fresh = FromScratch()
    fresh.load()
    assert shipped.tokenizer.backend_tokenizer.to_str() == fresh.tokenizer.backend_tokenizer.to_str()
    sizes = [{name: tuple(p.shape) for name, p in policy.named_parameters()} for policy in (shipped, fresh)]
    assert sizes[0] == sizes[1]
    assert {parameter.dtype for parameter in shipped.parameters()} == {torch.float32}


def test_no_directory_stands_in_for_a_packaged_model(tmp_path, monkeypatch, shipped):
    mine = Smaller()
    mine.load()
    for name in ("models/word-problems", "packaged:word-problems", "word-problems"):
        mine.save_pretrained(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    packaged, own = loaded("packaged:word-problems"), loaded("models/word-problems")
    assert packaged.model.config.hidden_size == 96 and own.model.config.hidden_size == 16
    assert packaged.origin.fingerprint == shipped.origin.fingerprint != own.origin.fingerprint
    assert own.origin.path == str(tmp_path / "models" / "word-problems")
    known = r"'packaged:word-problem' .*has the models packaged:calculator, packaged:driver"
    with pytest.raises(UserError, match=known):
        loaded("packaged:word-problem")


def test_it_leaves_constrained_training_something_to_do(shipped):
    """Sampled rates on problems that it has not seen: at least two are five points below the thresholds."""
    prompts = WordProblemsDataModule(test_prompts=200).source("test").groups(torch.arange(200))
    noise = torch.from_numpy(np.random.default_rng(0).random((200, 1, 80)))
    rollouts = GenerationSampler(max_new_tokens=80).rollout(shipped, prompts, 1, lambda *shape: noise)
    signals = GSM8KTask(80).score(prompts, rollouts)
    rates = {name: float(signals[name].value.mean()) for name in ("correctness", "format", "integer", "truncated")}
    assert 0.6 < rates["correctness"] < 0.85 and 0.8 < rates["format"] < 0.95 and 0.8 < rates["integer"] < 0.96
    assert sum(rates[name] < bound - 0.05 for name, bound in BOUNDS.items()) >= 2
    assert rates["truncated"] < 0.01
    assert 25 < rollouts.lengths.float().mean() < 40
