"""How many floating-point operations an update takes, and where.

A matrix product costs 2 operations per weight and token (Kaplan et al., 2020, section 2.1), attention of a query to one
key 4 H d (scores and weighted sum). The backward pass costs twice the forward pass, or once where weights are frozen
(adapters), and layers with checkpoints are computed once more.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from lightning_cgrpo.planning.activations import FULL, Row
from lightning_cgrpo.planning.sizes import ModelSizes
from lightning_cgrpo.planning.tokens import rows_of, training_rows
from lightning_cgrpo.planning.workload import Workload
from lightning_cgrpo.policies.policy import Policy
from lightning_cgrpo.policies.shared_prefix.log_probs import CHUNK_BYTES


@dataclass(frozen=True)
class Flops:
    """Operations of an update of all processes, by what they are for; the vision tower's of all passes are one part."""

    parts: dict[str, int]

    @property
    def total(self) -> int:
        """Of all parts."""
        return sum(self.parts.values())


def row_flops(sizes: ModelSizes, row: Row) -> tuple[int, int]:
    """Operations of a forward pass over a packed row: in the layers, and in the output layer.

    Layers: S tokens through `linear` weights each, n prompts of P (P + 1) / 2 pairs of tokens, and answers of
    (C - 1) P + (C - 1) C / 2. Output: M V D products.
    """
    tower, length, answer = sizes.decoder, row.prompt_tokens, row.answer_tokens
    prompts = row.prompts if row.shared else row.answers
    pairs = prompts * length * (length + 1) // 2
    pairs += row.answers * ((answer - 1) * length + (answer - 1) * answer // 2)
    weights = tower.linear + tower.adapter_weights
    layers = tower.layers * (2 * weights * row.tokens + 4 * tower.heads * tower.head_size * pairs)
    return layers, 2 * row.predicted * sizes.vocabulary * tower.width


def vision_flops(sizes: ModelSizes, patches: int, images: int) -> int:
    """Operations of a forward pass of the vision tower: all weights, and attention within windows, or images.

    Args:
        sizes: of the model.
        patches: of a prompt.
        images: which they are of, all alike.
    """
    if sizes.vision is None or not patches:
        return 0
    vision, tower = sizes.vision, sizes.vision.tower
    merger = vision.parameters - tower.layers * tower.layer
    linear = 2 * patches * (tower.layers * tower.linear + merger // vision.merge**2)
    whole = patches // max(images, 1)
    seen = (tower.layers - vision.full) * min(vision.window, whole) + vision.full * whole
    return linear + 4 * tower.heads * tower.head_size * patches * seen


def language_model_flops(sizes: ModelSizes, work: Workload, checkpointed: bool) -> Flops:
    """Operations of an update. The first token of an answer is chosen with the prompt's operations."""
    shared = sizes.obstacle is None
    scale = work.all_prompts / work.prompts
    base = 2 if sizes.trains_base else 1  # of the backward pass, in forward passes
    vision = 0
    parts: dict[str, int] = {}
    if work.generated:
        prompts = Row(work.prompts, 0, work.prompt_tokens, 1)
        answers = Row(work.prompts, work.answers, work.prompt_tokens, work.answer_tokens)
        layers, output = row_flops(sizes, answers)
        first = 2 * work.prompts * sizes.vocabulary * sizes.decoder.width
        reading = row_flops(sizes, prompts)[0]
        parts["rollout: prompts"] = reading + first
        parts["rollout: answers"] = layers - reading + output * (work.answer_tokens - 1) // work.answer_tokens
        vision += vision_flops(sizes, work.patches, work.images) * work.prompts
    for name, passes in (("reference", work.reference_passes), ("old log-probabilities", work.old_passes)):
        rows = rows_of(work, passes, shared)
        if rows:
            parts[name] = sum(sum(row_flops(sizes, row)) for row in rows)
            vision += sum(vision_flops(sizes, work.patches, work.images) * row.prompts for row in rows)
    training = 0
    for row in (row for step in training_rows(work, shared) for row in step):
        layers, output = row_flops(sizes, row)
        again = row.predicted > CHUNK_BYTES // (FULL * sizes.vocabulary) and shared
        training += layers * (1 + base + checkpointed) + output * (1 + base + again)
        vision += work.epochs * vision_flops(sizes, work.patches, work.images) * row.prompts * (1 + base + checkpointed)
    parts["training"] = work.epochs * training
    if vision:
        parts["vision tower"] = vision
    return Flops({name: round(value * scale) for name, value in parts.items()})


def small_policy_flops(policy: Policy, work: Workload) -> Flops:
    """Operations of a policy that is all linear layers: 2 per weight and step, 6 in training."""
    weights = sum(layer.weight.numel() for layer in policy.modules() if isinstance(layer, nn.Linear))
    steps = work.all_prompts * work.group_size * work.answer_tokens
    parts = {"rollout: answers": 2 * weights * steps}
    if work.reference_passes:
        parts["reference"] = 2 * weights * steps
    parts["training"] = 6 * weights * steps * work.epochs
    return Flops(parts)
