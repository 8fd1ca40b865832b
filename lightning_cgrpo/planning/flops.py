"""Floating-point operations of an update, by part.

A matrix product costs 2 operations per weight and token (Kaplan et al., 2020, section 2.1), attention 4 H d per pair of
query and key. The backward pass costs twice the forward pass, or once with frozen weights (adapters). Layers with
checkpoints are computed once more.
"""

from __future__ import annotations

from torch import nn

from lightning_cgrpo.planning.activations import Row
from lightning_cgrpo.planning.sizes import ModelSizes
from lightning_cgrpo.planning.tokens import rows_of, training_rows
from lightning_cgrpo.planning.workload import Workload
from lightning_cgrpo.policies.policy import Policy
from lightning_cgrpo.policies.shared_prefix.log_probs import chunk_rows

Flops = dict[str, int]
"""Operations of all processes by part; the vision tower is one part."""


def row_flops(sizes: ModelSizes, row: Row) -> tuple[int, int]:
    """Operations of a forward pass: in the layers, and in the output layer (2 M V D).

    Pairs of query and key: P (P + 1) / 2 per prompt, (C - 1) P + (C - 1) C / 2 per answer.
    """
    tower, length, answer = sizes.decoder, row.prompt_tokens, row.answer_tokens
    prompts = row.prompts if row.shared else row.answers
    pairs = prompts * length * (length + 1) // 2
    pairs += row.answers * ((answer - 1) * length + (answer - 1) * answer // 2)
    weights = tower.linear + tower.adapter_weights
    layers = tower.layers * (2 * weights * row.tokens + 4 * tower.heads * tower.head_size * pairs)
    return layers, 2 * row.predicted * sizes.vocabulary * tower.width


def _vision_flops(sizes: ModelSizes, patches: int, images: int) -> int:
    if sizes.vision is None or not patches:
        return 0
    vision, tower = sizes.vision, sizes.vision.tower
    merger = vision.parameters - tower.layers * tower.layer
    linear = 2 * patches * (tower.layers * tower.linear + merger // vision.merge**2)
    whole = patches // max(images, 1)
    seen = (tower.layers - vision.full) * min(vision.window, whole) + vision.full * whole
    return linear + 4 * tower.heads * tower.head_size * patches * seen


def language_model_flops(sizes: ModelSizes, work: Workload, checkpointed: bool, device: str) -> Flops:
    """Operations of an update on a type of device. Choosing an answer's first token counts as reading the prompt."""
    shared = sizes.obstacle is None
    backward = 2 if sizes.trains_base else 1  # In forward passes.
    images = _vision_flops(sizes, work.patches, work.images)
    vision = 0
    parts: Flops = {}
    if work.generated:
        answers = Row(work.prompts, work.answers, work.prompt_tokens, work.answer_tokens)
        layers, output = row_flops(sizes, answers)
        reading = row_flops(sizes, Row(work.prompts, 0, work.prompt_tokens, 1))[0]
        parts["rollout: prompts"] = reading + 2 * work.prompts * sizes.vocabulary * sizes.decoder.width
        parts["rollout: answers"] = layers - reading + output * (work.answer_tokens - 1) // work.answer_tokens
        vision += images * work.prompts
    for name, passes in (("reference", work.reference_passes), ("old log-probabilities", work.old_passes)):
        rows = rows_of(work, passes, shared)
        if rows:
            parts[name] = sum(sum(row_flops(sizes, row)) for row in rows)
            vision += sum(images * row.prompts for row in rows)
    training = 0
    for row in training_rows(work, shared):
        layers, output = row_flops(sizes, row)
        again = row.predicted > chunk_rows(sizes.vocabulary, device) and sizes.chunks
        training += layers * (1 + backward + checkpointed) + output * (1 + backward + again)
        vision += work.epochs * images * row.prompts * (1 + backward + checkpointed)
    parts["training"] = work.epochs * training
    if vision:
        parts["vision tower"] = vision
    return {name: round(value * (work.all_prompts / work.prompts)) for name, value in parts.items()}


def small_policy_flops(policy: Policy, work: Workload) -> Flops:
    """Operations of linear layers: 2 per weight and step, 6 in training."""
    weights = sum(layer.weight.numel() for layer in policy.modules() if isinstance(layer, nn.Linear))
    once = 2 * weights * work.all_prompts * work.group_size * work.answer_tokens
    reference = {"reference": once} if work.reference_passes else {}
    return {"rollout: answers": once, **reference, "training": 3 * once * work.epochs}
