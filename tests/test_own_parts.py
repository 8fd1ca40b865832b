"""The table "Where do I add …" of docs/architecture.md: each part is written in a user's own file."""

import re
import shlex
import textwrap
from pathlib import Path

import pytest

from lightning_cgrpo.__main__ import main
from tests.quiet import GRIDWORLD, SILENT

ROOT = Path(__file__).parents[1]
PARTS = '''
import torch
from lightning.pytorch import Callback

from lightning_cgrpo import (
    AdvantageEstimator, Controller, Environment, EnvironmentSampler, GroupDataModule, PromptGroups, Signal, Task,
)


class Coin:
    """One step: action 1 wins a point and costs a scratch."""

    def __init__(self, episodes):
        self.start = torch.zeros(episodes, dtype=torch.long)

    def observe(self, states):
        return states[:, None].float()

    def step(self, states, actions):
        return torch.ones_like(states)

    def ended(self, states):
        return states == 1

    def report(self, states, actions, reached):
        return {"won": actions == 1, "scratched": actions == 1}


class CoinToss(Environment):
    max_steps, observation_size, actions = 1, 1, 2

    def reset(self, prompts, group_size):
        return Coin(len(prompts) * group_size)


class CoinTask(Task):
    signals = {"won": "indicator", "scratched": "indicator"}

    def score(self, prompts, rollouts):
        return {name: Signal(rollouts.info[name].any(-1).float()) for name in self.signals}


class Tosses:
    def __len__(self):
        return 64

    def groups(self, index):
        return PromptGroups(index)


class CoinData(GroupDataModule):
    def source(self, split):
        return Tosses()


class Twice(EnvironmentSampler):
    """A sampler of one's own may start from a shipped sampler."""

    calls = 0

    def rollout(self, *args):
        Twice.calls += 1
        return super().rollout(*args)


class Centered(AdvantageEstimator):
    def __call__(self, rollouts, statistics, weights):
        values = statistics.values - statistics.values.mean(-1, keepdim=True)
        return (weights[:, None, None] * values).sum(0).float()

    def effective_weights(self, statistics, weights):
        return weights[:, None] * statistics.std


class Steady(Controller):
    """All weight moves to the reward, a tenth an update, as long as the constraints hold."""

    def _allocate(self, size):
        self.register_buffer("share", torch.full((size,), 0.5 / size, dtype=torch.float64))

    def _update(self, violations, observed):
        self.share *= torch.where(violations < 0, 0.9, 1.0)

    @property
    def weights(self):
        return torch.cat([1 - self.share.sum()[None], self.share])


class Counter(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        print("weights", [round(weight, 3) for weight in pl_module.weights.tolist()])
'''


@pytest.fixture
def own(folder, monkeypatch):
    """A folder of the user's, with own_parts.py."""
    monkeypatch.syspath_prepend(str(folder))
    Path("own_parts.py").write_text(PARTS)
    return folder


def test_a_problem_of_one_s_own(own, capsys):
    """Environment, task, signals, data, sampler, estimator, controller and callback; nothing of a shipped task."""
    Path("mine.yaml").write_text(
        textwrap.dedent("""
        trainer: {max_steps: 3, accelerator: cpu, limit_val_batches: 0, enable_checkpointing: false}
        model:
          class_path: lightning_cgrpo.ConstrainedGRPO
          init_args:
            policy: {class_path: CategoricalMLP, init_args: {observation_size: 1, actions: 2, hidden: [8]}}
            sampler: {class_path: own_parts.Twice, init_args: {environment: own_parts.CoinToss}}
            task: own_parts.CoinTask
            objective: {reward: won, constraints: {scratched: {at_most: 0.9}}}
            estimator: own_parts.Centered
            optimizer: {class_path: torch.optim.Adam, init_args: {lr: 0.01}}
            group_size: 8
        data: {class_path: own_parts.CoinData, init_args: {prompts_per_update: 4}}
        callbacks:
          multipliers: {class_path: LagrangianCallback, init_args: {controller: own_parts.Steady}}
          counter: own_parts.Counter
        """)
    )
    main(["fit", "-c", "mine.yaml", *SILENT])
    import own_parts

    assert own_parts.Twice.calls >= 3
    weights = [line for line in capsys.readouterr().out.splitlines() if line.startswith("weights")]
    assert len(weights) == 3 and weights[-1] == "weights [0.636, 0.364]"  # 1 - 0.5 * 0.9^3 = 0.6355


def test_the_page_runs(folder, monkeypatch, capsys):
    """Each part of docs/your_own_part.md trains by the page's own command, an update long."""
    page = (ROOT / "docs" / "your_own_part.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python title=\"my_parts.py\"\n(.*?)```", page, re.DOTALL)
    (commands,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    (folder / "my_parts.py").write_text(code)
    (folder / "configs").symlink_to(ROOT / "configs")
    monkeypatch.syspath_prepend(str(folder))
    runs = [shlex.split(line)[4:] for line in commands.splitlines()]
    assert len(runs) == 3
    for arguments in runs:
        main(["fit", *GRIDWORLD, *arguments[2:], "--trainer.logger=CSVLogger", "--trainer.max_steps=1"])
        assert "1 of 1 updates" in capsys.readouterr().out
