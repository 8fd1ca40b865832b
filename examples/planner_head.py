"""Train the head of configs/navsim_chain.yaml to imitate human drives in generated scenes, by denoising.

    python examples/planner_head.py my-head 6000 4000 128    # folder, scenes, steps, width: two minutes on one CPU core
    python -m lightning_cgrpo fit -c configs/navsim_chain.yaml --model.policy.weights=my-head

Each step mixes demonstrated drives with noise as the chain does, and the network predicts the drives. The last scenes
are held out; their mean and final distances between sampled and human drives are printed.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from driving_scenes.generator import GeneratedScenes
from lightning_cgrpo.policies.chain_policy import WEIGHTS, ChainPolicy
from lightning_cgrpo.policies.chains import DDIM
from lightning_cgrpo.tasks.driving.drive_numbers import drive, numbers_of
from lightning_cgrpo.tasks.driving.planner_head import PlannerHead
from lightning_cgrpo.tasks.driving.planner_inputs import DrivingInputs, scene_context

HELD_OUT, BATCH, LARGEST = 200, 256, 6.0
BLUR = 0.02
"""Standard deviation of noise on contexts, because a few thousand scenes are few."""


def demonstrations(count):
    """Contexts [N, C], numbers [N, D], speeds [N] and human drives [N, 8, 3] of N scenes."""
    scenes = GeneratedScenes(0).scenes("train")
    rows = []
    for number in range(count):
        scene = scenes[number]
        speed = float(scene.ego.velocities[-1, 0])
        numbers = numbers_of(scene.human, speed).float().clamp(-LARGEST, LARGEST)
        rows.append((scene_context(scene), numbers, torch.tensor(speed), scene.human))
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def denoise(head, chain, context, numbers, steps):
    """Mean squared errors of the predicted drives, at each of the chain's times."""
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    times, shares, noises = (
        torch.tensor(values[:-1]) for values in (chain.times, chain.answer_shares, chain.noise_shares)
    )
    for step in range(steps):
        row = torch.randint(len(numbers), (BATCH,))
        at = torch.randint(chain.steps, (BATCH,))
        state = shares[at, None] * numbers[row] + noises[at, None] * torch.randn(BATCH, numbers.shape[1])
        predicted = head(state, times[at], context[row] + BLUR * torch.randn(BATCH, context.shape[1]))
        loss = (predicted - numbers[row]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 500 == 499:
            print(f"step {step + 1}: loss {float(loss.detach()):.4f}", flush=True)


def main(folder="my-head", count="6000", steps="4000", width="128"):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    context, numbers, speeds, human = demonstrations(int(count))
    chain, head = DDIM(steps=5, min_std=0.07), PlannerHead(width=int(width), layers=3)
    print(f"{sum(weight.numel() for weight in head.parameters()):,} parameters")
    denoise(head, chain, context[:-HELD_OUT], numbers[:-HELD_OUT], int(steps))
    policy = ChainPolicy(head, DrivingInputs.size, chain)
    chains = policy.sample(context[-HELD_OUT:], torch.rand(HELD_OUT, policy.draws(), dtype=torch.float64))
    away = drive(chains.states[:, -1], speeds[-HELD_OUT:])[:, 1::2, :2] - human[-HELD_OUT:, :, :2]
    distances = away.norm(dim=-1)
    print(f"held-out scenes: mean distance {distances.mean():.2f} m, final {distances[:, -1].mean():.2f} m")
    Path(folder).mkdir(parents=True, exist_ok=True)
    save_file(head.state_dict(), Path(folder) / WEIGHTS)


if __name__ == "__main__":
    main(*sys.argv[1:])
