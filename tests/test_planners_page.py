"""The page about planners: its loops run on stored scenes, and move the weights of what is violated."""

import re
from pathlib import Path

import torch

from lightning_cgrpo import ConstrainedAdvantages, Constraint, Objective
from navsim_score.signals import NavsimSignals
from tests.navsim_score.devkit_scenes import candidates, scenes, store_of

PAGE = Path(__file__).parents[1] / "docs" / "planners.md"


def test_the_loops_of_the_page_give_advantages(folder):
    made = {name: scenes()[name] for name in ("late", "cones")}
    store_of(Path("store"), made)
    recogdrive, diffusiondrive = re.findall(r"```py\n(# once.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names = {
        "NavsimSignals": NavsimSignals,
        "Objective": Objective,
        "Constraint": Constraint,
        "ConstrainedAdvantages": ConstrainedAdvantages,
        "B": 2,
        "G": 4,
        "trajs": candidates().repeat(2, 1, 1),
        "tokens_list": list(made),
    }
    exec(compile(recogdrive, "docs/planners.md", "exec"), names)
    assert names["advantages"].shape == (8,) and names["advantages"].isfinite().all()
    # Accelerating into the cones halves NC, and braking loses progress: neither is the best of its scene.
    measured, advantages = names["measured"], names["advantages"].view(2, 4)
    assert measured["NC"][1].min() == 0.5
    best = advantages[1].argmax()
    assert measured["NC"][1, best] == 1
    assert names["advantages_of"].weights.keys() == {"reward", "NC", "DAC", "TTC", "EC", "progress"}
    assert torch.isclose(torch.tensor(sum(names["advantages_of"].weights.values())), torch.tensor(1.0))
    # Two candidates of each of two anchors: compared within an anchor, so their advantages have a mean of 0.
    names |= {"G": 2, "A": 2, "diffusion_output": candidates().expand(2, 4, -1, -1)}
    exec(compile(diffusiondrive, "docs/planners.md", "exec"), names)
    pairs = names["advantages"].view(2, 2, 2)  # scene, candidate, anchor
    assert pairs.sum(1).abs().max() < 1e-5 and pairs.abs().max() > 0.1
    assert not torch.allclose(pairs[..., 0], pairs[..., 1])
