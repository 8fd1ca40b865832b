"""A loop like DiffusionDriveV2's on generated scenes, with its own advantages or those of declared constraints.

    python examples/anchored_planner.py store 256 60    # folder of the store, pairs of frames, updates

Chains start at anchors, and each step multiplies x and y of a trajectory by one random factor each. Candidates of an
anchor in a scene are a group. The program imitates human drives, prints the scores of the start, and trains it by two
rules: `of_score` is like the public loop's, `declared` makes progress and keeps the start's rates. docs/planners.md
explains.
"""

import copy
import sys
from pathlib import Path

import torch

from driving_scenes.generator import GeneratedScenes
from lightning_cgrpo import ConstrainedAdvantages, Constraint, Objective
from lightning_cgrpo.policies.chains import DDIM
from lightning_cgrpo.tasks.driving.drive_numbers import SECONDS, drive
from lightning_cgrpo.tasks.driving.planner_head import PlannerHead
from lightning_cgrpo.tasks.driving.planner_inputs import scene_context
from navsim_score.provenance import Provenance, scorer_version
from navsim_score.signals import NavsimSignals
from navsim_score.store.preparing import prepared
from navsim_score.store.store import INDEX, Store, write_store

ANCHORS, GROUP = 4, 8
PAIRS = 8
"""Pairs of frames of an update, and of a step of imitation times 16."""
FACTOR = 0.04
"""Standard deviation of the factors of a step."""
CHAIN = DDIM(steps=5, min_std=0.1, start=0.02)
UNIT = torch.tensor([50.0, 20.0])
"""Meters of a state of 1, along x and y."""
DISCOUNT = 0.8 ** torch.arange(CHAIN.steps - 1, -1, -1)
"""Shares of the advantage by step: the last shapes the trajectory most."""


# -------------------------------------------------------------------- scenes


class Scenes:
    """P pairs of frames: names, contexts ``[2 P, C]`` and human drives ``[2 P, 16]``; row n + P follows row n."""

    def __init__(self, split, pairs):
        made = GeneratedScenes(seed=1)
        self.scenes = [
            source[number] for source in (made.scenes(split), made.next_frames(split)) for number in range(pairs)
        ]
        self.names = [scene.name for scene in self.scenes]
        self.context = torch.stack([scene_context(scene) for scene in self.scenes])
        humans = torch.stack([scene.human for scene in self.scenes])
        self.human = (humans[..., :2] / UNIT).flatten(1).float()

    def pairs(self, count):
        """Rows of random pairs, the frames before first."""
        chosen = torch.randperm(len(self.scenes) // 2)[:count]
        return torch.cat([chosen, chosen + len(self.scenes) // 2])


def anchors_of(drives, count=ANCHORS):
    """Mean drives ``[A, 16]`` of `count` clusters of drives ``[N, 16]``, by k-means."""
    anchors = drives[drives[:, -2].argsort()[torch.linspace(0, len(drives) - 1, count).long()]]
    for _ in range(20):
        nearest = torch.cdist(drives, anchors).argmin(1)
        for number in nearest.unique().tolist():
            anchors[number] = drives[nearest == number].mean(0)
    return anchors


# -------------------------------------------------------------------- chains


def varied(states, factor=FACTOR):
    """States ``[N, 16]`` times a random factor of x and one of y, which keep a trajectory smooth."""
    return states * (1 + factor * torch.randn(len(states), 2)).repeat(1, 8)


class Head(PlannerHead):
    """Predicts accelerations and curvatures, so that its drives are smooth."""

    def forward(self, states, times, context):
        numbers = super().forward(states, times, context)[:, : 2 * SECONDS]
        points = drive(numbers, 10 * context[:, 0])[:, 1::2, :2]  # a context begins with speed / 10
        return (points / UNIT).flatten(1).float()


def drives(head, states, step, context):
    """The drives ``[N, 16]`` that the network predicts from states of a step."""
    return head(states, states.new_full((len(states),), CHAIN.times[step]), context)


@torch.no_grad()
def sample(head, states, context, factor=FACTOR):
    """States ``[N, 1 + K, 16]`` of chains; the last is the trajectory."""
    chain = [states]
    for step in range(CHAIN.steps):
        mean = CHAIN.mean(chain[-1], drives(head, chain[-1], step, context), step)
        chain.append(varied(mean, factor))
    return torch.stack(chain, 1)


def poses(states):
    """Poses ``[N, 8, 3]`` every 0.5 s of states ``[N, 16]``, which head from point to point."""
    points = states.unflatten(1, (8, 2)) * UNIT
    ways = torch.cat([points[:, :1], points.diff(dim=1)], 1)
    yaw = torch.where(ways[..., 0] > 0.2, torch.atan2(ways[..., 1], ways[..., 0]), 0.0)
    return torch.cat([points, yaw[..., None]], 2)


# -------------------------------------------------------------------- advantages of an anchor's groups [B A, G]


def of_score(measured):
    """Like the public rule: scores above the group's mean count, and a collision or leaving the road is -1."""
    score = measured["epdms"]
    above = ((score - score.mean(1, keepdim=True)) / (score.std(1, keepdim=True) + 1e-4)).clamp(min=0)
    return torch.where((measured["NC"] < 1) | (measured["DAC"] < 1), -1.0, above)


def declared(least):
    """Progress is the reward; NC, DAC and EC keep at least their declared rates."""
    constraints = {name: Constraint(at_least=least[name]) for name in ("DAC", "EC")}
    constraints["NC"] = Constraint(at_most=1 - least["NC"], violated_below=1)  # half a collision violates, too
    return ConstrainedAdvantages(Objective("EP", constraints))


def by_anchor(values, group):
    """``[B A, G]`` of values ``[B, G A]``."""
    return values.unflatten(1, (group, -1)).transpose(1, 2).flatten(0, 1)


def by_chain(advantages, scenes):
    """``[B G A]``, as chains lie, of an anchor's groups ``[B A, G]``."""
    return advantages.unflatten(0, (scenes, -1)).transpose(1, 2).flatten()


# -------------------------------------------------------------------- loop


def imitate(head, anchors, scenes, steps):
    """Predict the human's drive from every anchor."""
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)
    for _ in range(steps):
        rows = scenes.pairs(16 * PAIRS)
        step = int(torch.randint(CHAIN.steps, ()))
        anchor = anchors[torch.randint(len(anchors), (len(rows),))]
        # Later states lie between the anchor and the human's drive.
        mixed = torch.lerp(anchor, scenes.human[rows], torch.rand(len(rows), 1))
        loss = (drives(head, varied(mixed), step, scenes.context[rows]) - scenes.human[rows]).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train(head, anchors, scenes, signals, advantages_of, updates):
    """Reinforce chains by their advantages; imitation keeps a tenth of its weight, as in the public loop."""
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-4)
    for _ in range(updates):
        rows = scenes.pairs(PAIRS)
        each = GROUP * len(anchors)
        context = scenes.context[rows].repeat_interleave(each, 0)
        chains = sample(head, varied(anchors.repeat(GROUP * len(rows), 1)), context)
        measured = signals(poses(chains[:, -1]).unflatten(0, (-1, each)), [scenes.names[row] for row in rows])
        groups = {name: by_anchor(values, GROUP) for name, values in measured.items()}
        advantages = by_chain(advantages_of(groups).float(), len(rows))
        loss = torch.zeros(())
        human = scenes.human[rows].repeat_interleave(each, 0)
        for step in range(CHAIN.steps):
            predicted = drives(head, chains[:, step], step, context)
            away = chains[:, step + 1] - CHAIN.mean(chains[:, step], predicted, step)
            # The log-density of a Gaussian around the mean stands for that of the factors, which has none.
            log_probs = -(away / CHAIN.stds[step]).square().sum(1) / 2
            ratio = (log_probs - log_probs.detach()).exp()
            loss = loss - DISCOUNT[step] * (ratio * advantages).mean() + 0.1 * (predicted - human).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def scores(head, anchors, scenes, signals):
    """Mean scores of chains without factors, one from each anchor."""
    context = scenes.context.repeat_interleave(len(anchors), 0)
    chains = sample(head, anchors.repeat(len(scenes.names), 1), context, factor=0.0)
    measured = signals(poses(chains[:, -1]).unflatten(0, (-1, len(anchors))), scenes.names)
    kept = {"NC": (measured["NC"] == 1).double()}
    return {name: float(kept.get(name, measured[name]).nanmean()) for name in ("EP", "EC", "NC", "DAC", "epdms")}


def stored(folder, scenes):
    """True if the folder is a store of all these scenes."""
    return (Path(folder) / INDEX).is_file() and {scene.name for scene in scenes} <= Store(folder).entries.keys()


def main(folder="store", pairs=256, updates=60, imitated=1500, width=576):
    """Scores of the start and of both rules by name."""
    torch.manual_seed(0)
    training, held_out = Scenes("train", pairs), Scenes("test", max(2, pairs // 4))
    if not stored(folder, training.scenes + held_out.scenes):
        known = Provenance("generated scenes", None, scorer_version(), "")
        write_store(folder, map(prepared, training.scenes + held_out.scenes), known)
    signals = NavsimSignals(folder, both_frames=True)
    anchors = anchors_of(training.human)
    head = Head(size=16, width=width)
    imitate(head, anchors, training, imitated)
    found = {"start": scores(head, anchors, held_out, signals)}
    least = {name: min(max(found["start"][name], 0.05), 0.99) for name in ("NC", "DAC", "EC")}
    rules = {"of_score": of_score, "declared": declared(least)}
    for name, rule in rules.items():
        torch.manual_seed(1)
        trained = copy.deepcopy(head)
        train(trained, anchors, training, signals, rule, updates)
        found[name] = scores(trained, anchors, held_out, signals)
    for name, row in found.items():
        print(name, *(f"{score} {value:.3f}" for score, value in row.items()), flush=True)
    return found


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
