"""Constrained GRPO on the gridworld in one plain PyTorch file, to be read from top to bottom in ten minutes.

The library computes the same numbers (tests/test_plain_example.py) and takes hardly longer (benchmarks/whole_run.py).

    python examples/plain_cgrpo.py 300
"""

import sys

import numpy as np
import torch
from torch import Tensor, nn

SIZE, LAVA, HORIZON = 10, 20, 80  # grid side, lava tiles, longest episode
GROUPS, GROUP_SIZE, EPOCHS, MINIBATCH = 8, 8, 2, 2048
CLIP, ENTROPY = 0.2, 0.001
THRESHOLDS = torch.tensor([0.01, 0.01], dtype=torch.float64)  # of steps on lava, of steps with a low battery


# ---------------------------------------------------------------- layouts and randomness, all by counter
def rng(stream: int, *counters: int) -> np.random.Generator:
    return np.random.default_rng((0, stream, *counters))


def layouts(index: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    cells = torch.from_numpy(np.stack([rng(0, 0, i).permutation(SIZE * SIZE) for i in index]))
    lava = torch.zeros(len(index), SIZE * SIZE, dtype=torch.bool).scatter_(1, cells[:, 2 : 2 + LAVA], True)
    return cells[:, 0], cells[:, 1], lava


# ---------------------------------------------------------------- rollout
@torch.no_grad()
def rollout(policy: nn.Module, update: int, index: list[int]) -> dict[str, Tensor]:
    start, goal, lava = (x.repeat_interleave(GROUP_SIZE, 0) for x in layouts(index))
    m = len(start)
    noise = np.stack([rng(2, update, i).random((GROUP_SIZE, HORIZON)) for i in index])
    noise = torch.from_numpy(noise).view(m, HORIZON)
    padded = nn.functional.pad(lava.view(m, SIZE, SIZE).to(torch.get_default_dtype()), (2, 2, 2, 2)).flatten(1)
    window = (torch.arange(5)[:, None] * (SIZE + 4) + torch.arange(5)).flatten()
    dx, dy = torch.tensor([0, 0, -1, 1, 0]), torch.tensor([-1, 1, 0, 0, 0])
    x, y, battery = start % SIZE, start // SIZE, torch.full((m,), 20)
    goal_x, goal_y = goal % SIZE, goal // SIZE
    rows = torch.arange(m)  # the episodes that go on
    steps = []
    for t in range(HORIZON):
        where = torch.stack([x, y, goal_x, goal_y], 1) / (SIZE - 1)
        near = padded[rows[:, None], (y * (SIZE + 4) + x)[:, None] + window]
        obs = torch.cat([where, battery[:, None] / 20, near], 1)
        logp = policy(obs).log_softmax(-1)
        action = (logp[:, :-1].exp().cumsum(-1) <= noise[rows, t, None].to(logp.dtype)).sum(-1)
        x, y = (x + dx[action]).clamp(0, SIZE - 1), (y + dy[action]).clamp(0, SIZE - 1)
        battery = (battery + torch.where(action == 4, 4, -1)).clamp(0, 20)
        reached = (x == goal_x) & (y == goal_y)
        logp = logp.gather(1, action[:, None])[:, 0]
        steps.append((rows * HORIZON + t, obs, action, logp, reached, lava[rows, y * SIZE + x], battery < 2))
        if reached.any():
            rows, x, y, goal_x, goal_y, battery = (v[~reached] for v in (rows, x, y, goal_x, goal_y, battery))
            if len(rows) == 0:
                break
    columns = [torch.cat(column) for column in zip(*steps, strict=True)]
    order = columns[0].argsort()  # episode by episode
    names = ("episode", "obs", "action", "logp", "goal", "lava", "battery")
    result = {name: column[order] for name, column in zip(names, columns, strict=True)}
    result["episode"] //= HORIZON
    return result


# ---------------------------------------------------------------- the method
def standardize(values: Tensor) -> Tensor:
    """Z within each group, 0 where a group doesn't vary."""
    deviation = values - values.mean(-1, keepdim=True)
    std = values.std(-1, keepdim=True, correction=0)
    return torch.where(std > 1e-6, deviation / std.clamp(min=1e-6), 0)


def train(updates: int, policy: nn.Module, optimizer: torch.optim.Optimizer, first: int = 0) -> Tensor:
    """Returns the multipliers of (reward, lava, battery) after each update."""
    order = np.random.default_rng((0, 1, 0)).permutation(64_000)
    logits = torch.full((3,), 0.02, dtype=torch.float64, requires_grad=True)
    dual = torch.optim.Adam([logits], lr=0.01, maximize=True)
    history = []
    for update in range(first, first + updates):
        index = order[update * GROUPS : (update + 1) * GROUPS].tolist()
        r = rollout(policy, update, index)
        zeros = torch.zeros(GROUPS * GROUP_SIZE)
        sums = [zeros.index_add(0, r["episode"], r[name].to(zeros.dtype)) for name in ("goal", "lava", "battery")]
        reward, *costs = (total.view(GROUPS, GROUP_SIZE) for total in sums)
        z = torch.stack([standardize(v.to(torch.get_default_dtype())) for v in (reward, *(-c for c in costs))])
        weights = logits.detach().softmax(-1)
        advantage = torch.einsum("j,jbg->bg", weights.to(z.dtype), z).flatten()[r["episode"]]
        obs, action, old = r["obs"], r["action"], r["logp"]
        for epoch in range(EPOCHS):
            parts = -(-len(action) // MINIBATCH)
            permutation = rng(3, update, epoch).permutation(len(action)) if parts > 1 else np.arange(len(action))
            for rows in torch.from_numpy(permutation).tensor_split(parts):
                logp = policy(obs[rows]).log_softmax(-1)
                ratio = (logp.gather(1, action[rows, None])[:, 0] - old[rows]).exp()
                a = advantage[rows]
                surrogate = torch.minimum(ratio * a, ratio.clamp(1 - CLIP, 1 + CLIP) * a)
                entropy = -(logp.exp() * logp).sum(-1)
                loss = -(surrogate + ENTROPY * entropy).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        rates = torch.stack([c.sum().double() for c in costs]) / len(action)
        multipliers = logits.softmax(-1)
        dual.zero_grad()
        (multipliers[1:] * (rates - THRESHOLDS)).sum().backward()
        dual.step()
        history.append(logits.detach().softmax(-1))
        if update % 100 == 0:
            goal = reward.double().mean()
            print(f"{update:5d} goal {goal:.2f} lava {rates[0]:.3f} battery {rates[1]:.3f} weights {history[-1]}")
    return torch.stack(history)


def make_policy() -> nn.Sequential:
    return nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 5))


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = make_policy()
    updates = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    train(updates, network, torch.optim.Adam(network.parameters(), lr=5e-4, fused=True))
