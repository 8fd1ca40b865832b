"""Lightning's seed is the source of all randomness, unless the user gives a part a seed of its own."""

from collections.abc import Mapping

import pytest
import torch
from lightning import seed_everything

from lightning_cgrpo.datamodules import GridworldDataModule, NavsimDataModule, WordProblemsDataModule
from lightning_cgrpo.policies.adapters import LoRA, with_adapters
from lightning_cgrpo.policies.tiny.text import build_model
from lightning_cgrpo.tasks.gsm8k.from_scratch import FromScratch
from tests.grids import grid_module
from tests.quiet import quiet_trainer


def layouts_and_actions(lightning_seed, **options):
    """What one update sees and does, after `seed_everything(lightning_seed)`."""
    seed_everything(lightning_seed)
    # The same weights for every seed: what differs then is what the module and its data draw.
    module, seen = grid_module(**options), {}
    step = module.training_step

    def training_step(prompts, batch_idx):
        output = step(prompts, batch_idx)
        seen.update(layouts=output["prompts"].columns["lava"], actions=output["rollouts"].actions)
        return output

    module.training_step = training_step
    trainer = quiet_trainer(max_steps=1)
    trainer.fit(module, GridworldDataModule(4, train_prompts=8, **options))
    return seen


def test_another_seed_of_lightning_gives_another_run():
    first, again, other = (layouts_and_actions(seed) for seed in (0, 0, 1))
    for name, values in first.items():
        assert torch.equal(values, again[name])
        assert values.shape != other[name].shape or not torch.equal(values, other[name])
    first, other = (layouts_and_actions(seed, seed=3) for seed in (0, 1))
    assert all(torch.equal(values, other[name]) for name, values in first.items()), "a seed of its own wins"


@pytest.mark.parametrize("kind", [GridworldDataModule, WordProblemsDataModule, NavsimDataModule])
def test_data_take_the_seed_that_is_set_when_they_are_used(kind):
    data = kind()
    for seed in (5, 6):
        seed_everything(seed)
        assert data.seed == seed
        assert data.train_dataloader().seed == seed
    assert kind(seed=2).seed == 2


class Smaller(FromScratch):
    sizes: Mapping[str, int] = {**FromScratch.sizes, "hidden_size": 16, "layers": 1, "heads": 2, "feed_forward": 16}


def test_weights_from_scratch_and_adapters_follow_the_seed():
    def weights(seed):
        seed_everything(seed)
        policy = Smaller()
        policy.load()
        base = build_model(policy.tokenizer, 16, 1, 2, 16, 64, seed=0)
        adapters = with_adapters(base, LoRA(rank=2))
        return policy.state_dict(), {name: t for name, t in adapters.state_dict().items() if "lora_A" in name}

    first, again, other = weights(0), weights(0), weights(1)
    for part in (0, 1):
        assert all(torch.equal(first[part][name], again[part][name]) for name in first[part])
        assert any(not torch.equal(first[part][name], other[part][name]) for name in first[part])
