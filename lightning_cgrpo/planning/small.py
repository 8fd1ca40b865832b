"""Memory of a small policy that trains on steps: a stack of linear layers."""

from __future__ import annotations

from torch import nn

from lightning_cgrpo.planning.execution import Execution
from lightning_cgrpo.planning.memory import Memory
from lightning_cgrpo.planning.workload import Workload
from lightning_cgrpo.policies import Policy


def small_policy_memory(policy: Policy, work: Workload, how: Execution) -> Memory:
    """What is kept of a minibatch of steps: its observations, and every layer's outcome and activation.

    The rollout keeps the same of one step of every episode, and every step's logits and observations.
    """
    weights = sum(p.numel() * p.element_size() for p in policy.parameters())
    share = how.gpus if how.sharding == "fsdp" else 1
    layers = [layer for layer in policy.modules() if isinstance(layer, nn.Linear)]
    widths = sum(layer.out_features for layer in layers)
    element = next(policy.parameters()).element_size()
    always = {
        "weights": -(-weights // share),
        "reference": -(-weights // share) if work.reference_passes else 0,
        "optimizer": -(-round(weights * how.state_bytes) // share),
        "buckets of gradients": weights if how.sharding == "ddp" else 0,
    }
    always = {name: size for name, size in always.items() if size}
    episodes = work.answers * work.answer_tokens
    ends = layers[0].in_features + layers[-1].out_features if layers else 0
    rollout = {**always, "rollout": element * (episodes * ends + work.answers * widths)}
    steps = work.largest_pass
    training = {
        **always,
        "rollout": element * episodes * ends,
        "gradients": -(-weights // share),
        "activations": element * steps * (2 * widths + ends),
    }
    return Memory({"rollout": rollout, "backward begins": training})
