"""Memory of a GPU in each phase of an update, at the phase's fullest moment.

Not counted: the CUDA context and its libraries (0.5 to 1 GB), and the allocator's fragments.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from lightning_cgrpo.planning.activations import FULL, HALF, Arithmetic, Row, Saved, saved
from lightning_cgrpo.planning.execution import Execution
from lightning_cgrpo.planning.sizes import ModelSizes
from lightning_cgrpo.planning.tokens import rows_of, training_rows
from lightning_cgrpo.planning.workload import Workload
from lightning_cgrpo.policies.policy import Policy
from lightning_cgrpo.policies.shared_prefix.log_probs import chunk_rows

Parts = dict[str, int]


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU, by phase and part."""

    phases: dict[str, Parts]

    @property
    def totals(self) -> dict[str, int]:
        return {name: sum(parts.values()) for name, parts in self.phases.items()}

    @property
    def peak(self) -> int:
        return max(self.totals.values())


def arithmetic_of(sizes: ModelSizes, how: Execution) -> Arithmetic:
    """The dtypes of passes. Under autocast FSDP gathers weights as bfloat16."""
    element = HALF if how.sharding == "fsdp" and how.autocast else sizes.element
    return Arithmetic(element, how.autocast, how.device == "cuda")


def language_model_memory(sizes: ModelSizes, work: Workload, how: Execution, checkpointed: bool) -> Memory:
    """Memory of a language model's update."""
    arithmetic = arithmetic_of(sizes, how)
    shared = sizes.obstacle is None
    always = standing(sizes, how, bool(work.reference_passes))
    phases: dict[str, Parts] = {}
    if work.generated:
        phases["rollout"] = {
            **always,
            "unsharded weights": _unsharded(sizes, how, everything=True),
            "casts of weights": HALF * cast_weights(sizes, how) if sizes.trains_base else 0,
            "KV cache": cache_bytes(sizes, work, arithmetic, shared),
            "working memory": _rollout_working(sizes, work, arithmetic),
        }
    for name, passes in (("reference", work.reference_passes), ("old log-probabilities", work.old_passes)):
        if passes:
            row = max(rows_of(work, passes, shared), key=lambda row: row.tokens)
            phases[name] = {
                **always,
                "unsharded weights": _unsharded(sizes, how, everything=False),
                "activations": _forward_working(sizes, row, row.prompts * work.patches, arithmetic),
                "logits": _logits_working(sizes, row, arithmetic, backward=False),
            }
    row = max(training_rows(work, shared), key=lambda row: row.tokens)
    kept = saved(sizes, row, row.prompts * work.patches, arithmetic, checkpointed)
    phases |= training_phases(sizes, row, kept, always, how, arithmetic, work.accumulates)
    return Memory({name: {part: size for part, size in parts.items() if size} for name, parts in phases.items()})


def standing(sizes: ModelSizes, how: Execution, reference: bool) -> Parts:
    """Bytes present in every phase; under FSDP a process has its share.

    The reference is a copy of the weights, except with adapters. Autocast's linear weights are copied in its dtype
    (`policies.precision.keep_cast`). DDP's buckets are a copy of all gradients.
    """
    weights = _share(sizes.weight_bytes, how)
    copied = weights - (sizes.element - HALF) * cast_weights(sizes, how)
    return {
        "weights": weights,
        "reference": copied if reference and sizes.trains_base else 0,
        "optimizer": _share(round(sizes.trainable_bytes * how.state_bytes), how),
        "buckets of gradients": sizes.trainable_bytes if how.sharding == "ddp" else 0,
    }


def cast_weights(sizes: ModelSizes, how: Execution) -> int:
    """Number of weights that autocast casts; FSDP gathers them as bfloat16 instead."""
    if how.sharding == "fsdp" or not how.autocast or sizes.element <= HALF:
        return 0
    towers = [sizes.decoder] + ([sizes.vision.tower] if sizes.vision else [])
    output = 0 if sizes.tied else sizes.vocabulary * sizes.decoder.width
    return sum(tower.layers * tower.linear for tower in towers) + output


def _share(size: int, how: Execution) -> int:
    return -(-size // how.gpus) if how.sharding == "fsdp" else size


def _unsharded(sizes: ModelSizes, how: Execution, everything: bool) -> int:
    """Bytes of the weights that a process gathers under FSDP.

    The rollout gathers everything, a pass two layers at a time and all parameters outside of layers.
    """
    if how.sharding != "fsdp":
        return 0
    element = arithmetic_of(sizes, how).element
    if everything:
        return sizes.parameters * element
    towers = [sizes.decoder] + ([sizes.vision.tower] if sizes.vision else [])
    layers = sum(tower.layers * (tower.layer + tower.adapter_weights) for tower in towers)
    return element * (2 * max(tower.layer for tower in towers) + sizes.parameters - layers)


# ---------------------------------------------------------------------- generation


def cache_bytes(sizes: ModelSizes, work: Workload, arithmetic: Arithmetic, shared: bool) -> int:
    """Bytes: 2 L K d n (P + G (C - 1)) numbers of keys and values, or 2 L K d n G (P + C - 1) without sharing.

    n prompts are generated at once. With sharing, each layer also holds a query of every answer, L H d n G numbers.
    """
    tower, fed = sizes.decoder, work.answer_tokens - 1
    answers = work.generated * work.group_size
    prompts = work.generated if shared else answers
    rows = 2 * tower.kv_heads * (prompts * work.prompt_tokens + answers * fed)
    if shared:
        rows += tower.heads * answers
    return tower.layers * tower.head_size * rows * arithmetic.product


def _rollout_working(sizes: ModelSizes, work: Workload, arithmetic: Arithmetic) -> int:
    """Bytes: the larger of reading prompts and choosing tokens.

    Choosing needs logits, scaled logits, probabilities, and a padded and a float64 copy. Filters add sorted
    probabilities and their order.
    """
    row = Row(work.generated, 0, work.prompt_tokens, 1)
    reading = _forward_working(sizes, row, work.generated * work.patches, arithmetic)
    each = arithmetic.product + 3 * arithmetic.full + 8 + (28 if work.filtered else 0)
    return max(reading, work.generated * work.group_size * sizes.vocabulary * each)


# ---------------------------------------------------------------------- passes


def _forward_working(sizes: ModelSizes, row: Row, patches: int, arithmetic: Arithmetic) -> int:
    """Bytes at the fullest moment without a backward pass, in a feed-forward layer: S (3 D + 3 F) numbers.

    D: input, sum after attention, norm. F: both branches, their product.
    """
    towers = [(sizes.decoder, row.tokens)]
    if sizes.vision is not None and patches:
        towers.append((sizes.vision.tower, patches))
    return max(
        tokens
        * (3 * tower.width * max(arithmetic.element, arithmetic.product) + 3 * tower.feed_forward * arithmetic.product)
        + (HALF * tower.width * tower.feed_forward if arithmetic.casts else 0)
        for tower, tokens in towers
    )


def logits_kept(sizes: ModelSizes, row: Row, arithmetic: Arithmetic) -> int:
    """Bytes of logits kept for the backward pass.

    All logits of a model that scales or caps them. Otherwise M V probabilities if a single chunk holds them, else none;
    autocast adds a copy of the output layer's weight.
    """
    if not sizes.chunks:
        return row.predicted * sizes.vocabulary * arithmetic.product
    _, single = _chunk(sizes, row, arithmetic)
    weight = HALF * sizes.vocabulary * sizes.decoder.width if arithmetic.casts else 0
    return weight + (row.predicted * sizes.vocabulary * arithmetic.full if single else 0)


def _logits_working(sizes: ModelSizes, row: Row, arithmetic: Arithmetic, backward: bool) -> int:
    """Bytes of temporary logits beside the kept; of several chunks, three exist at once."""
    if not sizes.chunks:
        return (3 if backward else 2) * row.predicted * sizes.vocabulary * arithmetic.full
    chunk, single = _chunk(sizes, row, arithmetic)
    if not single:
        return 3 * chunk
    if not backward:
        return chunk
    return chunk * (5 if arithmetic.product < FULL else 2) // 2


def _chunk(sizes: ModelSizes, row: Row, arithmetic: Arithmetic) -> tuple[int, bool]:
    """Bytes of a chunk of logits, and True if the only one."""
    rows = chunk_rows(sizes.vocabulary, "cuda" if arithmetic.cuda else "cpu")
    return min(row.predicted, rows) * sizes.vocabulary * arithmetic.full, row.predicted <= rows


def training_phases(
    sizes: ModelSizes, row: Row, kept: Saved, always: Parts, how: Execution, arithmetic: Arithmetic, accumulates: bool
) -> dict[str, Parts]:
    """The beginning and the end of the backward pass, and the optimizer's step.

    Kept activations go and gradients come layer by layer, so one end is the fullest moment. Accumulated gradients exist
    from the second pass on. A tied embedding has two gradients, the output layer's from the start.
    """
    gradients = _share(sizes.trainable_bytes, how)
    table = sizes.vocabulary * sizes.decoder.width * arithmetic.full if sizes.trains_base else 0
    gathered = {**always, "unsharded weights": _unsharded(sizes, how, everything=False)}
    layer = 2 * row.tokens * sizes.decoder.feed_forward * arithmetic.product  # Gradients of the wide tensors.
    begins = {
        **gathered,
        "gradients": gradients * accumulates + table,
        "activations": kept.total,
        "logits": logits_kept(sizes, row, arithmetic),
        "working memory": max(kept.recomputed + layer, _logits_working(sizes, row, arithmetic, backward=True)),
    }
    ends = {**gathered, "gradients": gradients, "working memory": table * (accumulates + sizes.tied)}
    step = {**always, "gradients": gradients, "working memory": _step_working(sizes, how)}
    return {"backward begins": begins, "backward ends": ends, "optimizer step": step}


def _step_working(sizes: ModelSizes, how: Execution) -> int:
    """Temporary bytes of AdamW's step: roots of all second moments (foreach), or two tensors (single)."""
    if how.temporaries == "fused" or not how.state_bytes:
        return 0
    every = how.temporaries == "foreach"
    return _share(sizes.trainable_bytes if every else 2 * max(sizes.element, FULL) * sizes.largest, how)


# ---------------------------------------------------------------------- small policies


def small_policy_memory(policy: Policy, work: Workload, how: Execution) -> Memory:
    """Memory of an update of linear layers that train on steps.

    A minibatch keeps observations, and every layer's result and activation. The rollout keeps one step of each episode,
    and all logits and observations.
    """
    weights = sum(p.nbytes for p in policy.parameters())
    share = _share(weights, how)
    layers = [layer for layer in policy.modules() if isinstance(layer, nn.Linear)]
    widths = sum(layer.out_features for layer in layers)
    element = next(policy.parameters()).element_size()
    always = {
        "weights": share,
        "reference": share if work.reference_passes else 0,
        "optimizer": _share(round(weights * how.state_bytes), how),
        "buckets of gradients": weights if how.sharding == "ddp" else 0,
    }
    always = {name: size for name, size in always.items() if size}
    episodes = work.answers * work.answer_tokens
    ends = layers[0].in_features + layers[-1].out_features if layers else 0
    training = {
        **always,
        "rollout": element * episodes * ends,
        "gradients": share,
        "activations": element * max(max(step) for step in work.passes) * (2 * widths + ends),
    }
    rollout = {**always, "rollout": element * (episodes * ends + work.answers * widths)}
    return Memory({"rollout": rollout, "backward begins": training})
