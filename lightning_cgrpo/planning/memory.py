"""What a GPU holds in each phase of an update.

Some of it is there in all phases (weights, reference, the optimizer's state), some in one: what a pass keeps for its
backward pass (`activations`), gradients, the cache of keys and values, logits, and what an operation works with. A
phase's bytes are those of its fullest moment; the peak is the fullest phase's.

Not counted: the CUDA context and its libraries (0.5 to 1 GB), and what the allocator loses to fragments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from lightning_cgrpo.planning.activations import FULL, HALF, Arithmetic, Row, Saved, saved
from lightning_cgrpo.planning.execution import Execution
from lightning_cgrpo.planning.sizes import ModelSizes
from lightning_cgrpo.planning.tokens import rows_of, training_rows
from lightning_cgrpo.planning.workload import Workload
from lightning_cgrpo.policies.policy import Policy
from lightning_cgrpo.policies.shared_prefix.decoding import ROOM
from lightning_cgrpo.policies.shared_prefix.log_probs import CHUNK_BYTES


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU, by phase and by what they are for."""

    phases: dict[str, dict[str, int]]

    @property
    def totals(self) -> dict[str, int]:
        """Of each phase."""
        return {name: sum(parts.values()) for name, parts in self.phases.items()}

    @property
    def peak(self) -> int:
        """Of the fullest phase."""
        return max(self.totals.values())


def arithmetic_of(sizes: ModelSizes, how: Execution) -> Arithmetic:
    """In which dtypes passes are computed: under autocast FSDP gathers weights as bfloat16."""
    element = HALF if how.sharding == "fsdp" and how.autocast else sizes.element
    return Arithmetic(element, how.autocast, how.device == "cuda")


def language_model_memory(sizes: ModelSizes, work: Workload, how: Execution, checkpointed: bool) -> Memory:
    """Memory of an update of a language model."""
    arithmetic = arithmetic_of(sizes, how)
    shared = sizes.obstacle is None
    always = standing(sizes, how, bool(work.reference_passes))
    phases: dict[str, dict[str, int]] = {}
    if work.generated:
        phases["rollout"] = {
            **always,
            "unsharded weights": unsharded(sizes, how, everything=True),
            "KV cache": cache_bytes(sizes, work, arithmetic, shared),
            "working memory": rollout_working(sizes, work, arithmetic),
        }
    per_prompt = work.patches
    for name, passes in (("reference", work.reference_passes), ("old log-probabilities", work.old_passes)):
        if passes:
            row = max(rows_of(work, passes, shared), key=lambda row: row.tokens)
            phases[name] = {
                **always,
                "unsharded weights": unsharded(sizes, how, everything=False),
                "activations": forward_working(sizes, row, row.prompts * per_prompt, arithmetic),
                "logits": logits_working(sizes, row, arithmetic, backward=False),
            }
    row = max((row for step in training_rows(work, shared) for row in step), key=lambda row: row.tokens)
    kept = saved(sizes, row, row.prompts * per_prompt, arithmetic, checkpointed)
    phases |= training_phases(sizes, row, kept, always, how, arithmetic, work.accumulates)
    return Memory({name: {part: size for part, size in parts.items() if size} for name, parts in phases.items()})


def standing(sizes: ModelSizes, how: Execution, reference: bool) -> dict[str, int]:
    """What is there in every phase.

    - weights: parameters times their bytes
    - reference: the same again, a copy; none with adapters, which are switched off instead, or without a KL term
    - optimizer: AdamW keeps two moments of each trained parameter, in its dtype
    - buckets of gradients: DDP keeps a copy of all gradients, from which they are sent
    Under FSDP each process has its share of all.
    """
    share = how.gpus if how.sharding == "fsdp" else 1
    return {
        "weights": _part(sizes.weight_bytes, share),
        "reference": _part(sizes.weight_bytes, share) if reference and sizes.trains_base else 0,
        "optimizer": _part(round(sizes.trainable_bytes * how.state_bytes), share),
        "buckets of gradients": sizes.trainable_bytes if how.sharding == "ddp" else 0,
    }


def _part(size: int, share: int) -> int:
    return -(-size // share)


def unsharded(sizes: ModelSizes, how: Execution, everything: bool) -> int:
    """Bytes of the weights that a process gathers under FSDP (`sharding.shard`).

    The rollout gathers all of them once; a pass two layers at a time (the one that is computed, and the next one on its
    way) and what is in no layer, for the whole pass.
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
    """Keys and values of all layers: 2 L K d (n P + n G room), the prompts' once for all of their answers.

    Room for answers grows by `decoding.ROOM` tokens; the last token is never read. Without sharing it is
    2 L K d n G (P + C - 1), transformers' own cache.
    """
    tower = sizes.decoder
    fed = work.max_new_tokens - 1 if shared else work.answer_tokens - 1
    fed = min(fed, work.answer_tokens - 1)
    answers = work.generated * work.group_size
    if shared:
        tokens = work.generated * work.prompt_tokens + answers * ROOM * math.ceil(fed / ROOM)
    else:
        tokens = answers * (work.prompt_tokens + fed)
    return 2 * tower.layers * tower.kinds * tower.head_size * tokens * arithmetic.product


def rollout_working(sizes: ModelSizes, work: Workload, arithmetic: Arithmetic) -> int:
    """Either reading the prompts, or choosing tokens from R V probabilities, whichever is more.

    Of each answer there are the logits, scaled ones, probabilities, and of these a padded and a float64 copy
    (`choice.sample`): V (product + 3 * 4 + 8) bytes; with top_p or top_k sorted ones and their order besides.
    """
    answers = work.generated * work.group_size
    row = Row(work.generated, 0, work.prompt_tokens, 1)
    reading = forward_working(sizes, row, work.generated * work.patches, arithmetic)
    each = arithmetic.product + 3 * arithmetic.full + 8 + (28 if work.filtered else 0)
    return max(reading, answers * sizes.vocabulary * each)


# ---------------------------------------------------------------------- passes


def forward_working(sizes: ModelSizes, row: Row, patches: int, arithmetic: Arithmetic) -> int:
    """The fullest moment of a pass that keeps nothing: in a feed-forward layer, S (3 D + 3 F) numbers.

    Of the residual stream there are the layer's input, the sum after attention and its norm; of the wide ones both
    branches and their product.
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

    Shared prompts (`shared_prefix.log_probs`): probabilities M V, at least float32, if that is one chunk, else none;
    and under autocast a copy of the output layer's weight. Otherwise (`token_log_probs`) the logits themselves.
    """
    if not row.shared:
        return row.predicted * sizes.vocabulary * arithmetic.product
    single = _chunk(sizes, row, arithmetic)[1]
    weight = HALF * sizes.vocabulary * sizes.decoder.width if arithmetic.casts else 0
    return weight + (row.predicted * sizes.vocabulary * arithmetic.full if single else 0)


def logits_working(sizes: ModelSizes, row: Row, arithmetic: Arithmetic, backward: bool) -> int:
    """Bytes of logits that exist at once beside those kept.

    Of a single chunk: in the forward pass logits (and the probabilities that are kept), in the backward pass their
    gradient. Of several chunks three: two of the last chunk when the next one is made.
    """
    if not row.shared:
        return (3 if backward else 2) * row.predicted * sizes.vocabulary * arithmetic.full
    chunk, single = _chunk(sizes, row, arithmetic)
    if not single:
        return 3 * chunk
    if not backward:
        return chunk
    return chunk * (5 if arithmetic.product < FULL else 2) // 2


def _chunk(sizes: ModelSizes, row: Row, arithmetic: Arithmetic) -> tuple[int, bool]:
    """Bytes of a chunk of logits, as many as are 64 MB in float32, and whether there is only one."""
    rows = max(CHUNK_BYTES // (FULL * sizes.vocabulary), 1)
    return min(row.predicted, rows) * sizes.vocabulary * arithmetic.full, row.predicted <= rows


def training_phases(
    sizes: ModelSizes,
    row: Row,
    kept: Saved,
    always: dict[str, int],
    how: Execution,
    arithmetic: Arithmetic,
    accumulates: bool,
) -> dict[str, dict[str, int]]:
    """The backward pass when it begins, when it ends, and the optimizer's step.

    In between, what was kept goes and gradients come, layer by layer, so that one of the two ends is the fullest. Where
    gradients accumulate over passes they are all there from the second one on.

    The gradient of a weight that is both embedding and output layer has two parts of V D numbers, the output layer's
    there from the start; they are added up in one of them.
    """
    share = how.gpus if how.sharding == "fsdp" else 1
    gradients = _part(sizes.trainable_bytes, share)
    table = sizes.vocabulary * sizes.decoder.width * arithmetic.full if sizes.trains_base else 0
    gathered = {"unsharded weights": unsharded(sizes, how, everything=False)}
    layer = 2 * row.tokens * sizes.decoder.feed_forward * arithmetic.product  # of gradients of the wide tensors
    begins = {
        **always,
        **gathered,
        "gradients": (gradients if accumulates else 0) + (table if accumulates or sizes.tied else 0),
        "activations": kept.total,
        "logits": logits_kept(sizes, row, arithmetic),
        "working memory": max(kept.recomputed + layer, logits_working(sizes, row, arithmetic, backward=True)),
    }
    if not accumulates and not sizes.tied:
        begins["gradients"] = table
    embedding = table * (1 if accumulates or sizes.tied else 0) + (table if accumulates and sizes.tied else 0)
    ends = {**always, **gathered, "gradients": gradients, "working memory": embedding}
    step = {**always, "gradients": gradients, "working memory": step_working(sizes, how, share)}
    return {"backward begins": begins, "backward ends": ends, "optimizer step": step}


def step_working(sizes: ModelSizes, how: Execution, share: int) -> int:
    """Bytes that AdamW's step works with: none if fused, roots of second moments (foreach), or two of one tensor."""
    if how.temporaries == "fused" or not how.state_bytes:
        return 0
    if how.temporaries == "foreach":
        return _part(sizes.trainable_bytes, share)
    return _part(2 * max(sizes.element, FULL) * sizes.largest, share)


# ---------------------------------------------------------------------- small policies


def small_policy_memory(policy: Policy, work: Workload, how: Execution) -> Memory:
    """Memory of an update of a stack of linear layers that trains on steps.

    Of a minibatch of steps there are kept its observations, and every layer's outcome and activation.

    The rollout keeps the same of one step of every episode, and every step's logits and observations.
    """
    weights = sum(p.numel() * p.element_size() for p in policy.parameters())
    share = how.gpus if how.sharding == "fsdp" else 1
    layers = [layer for layer in policy.modules() if isinstance(layer, nn.Linear)]
    widths = sum(layer.out_features for layer in layers)
    element = next(policy.parameters()).element_size()
    always = {
        "weights": _part(weights, share),
        "reference": _part(weights, share) if work.reference_passes else 0,
        "optimizer": _part(round(weights * how.state_bytes), share),
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
        "gradients": _part(weights, share),
        "activations": element * steps * (2 * widths + ends),
    }
    return Memory({"rollout": rollout, "backward begins": training})
