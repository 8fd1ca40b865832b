"""Bytes that a forward pass keeps for the backward pass.

Numbers per layer and token, all in one dtype:

    norms           2 (h, h / rms, and their product with the weight)          6 D
    attention       queries H d, keys and values 2 K d, its result twice       3 H d + 2 K d, and H log-sum-exps
    feed-forward    gate, its activation, the other branch, their product      4 F (2 F without a gate)
"""

from __future__ import annotations

from dataclasses import dataclass

from lightning_cgrpo.planning.sizes import ModelSizes, Tower, Vision

FULL = 4
"""Bytes of float32: norms, and (unless weights are float64) log-sum-exps and logits."""
HALF = 2


@dataclass(frozen=True)
class Arithmetic:
    """The dtypes of a model's computations.

    Args:
        element: bytes per number of the (base model's) weights.
        cuda: attention repeats a prompt's keys and values for its answers.
    """

    element: int
    autocast: bool
    cuda: bool

    @property
    def product(self) -> int:
        """Bytes per number of a matrix product."""
        return HALF if self.autocast else self.element

    @property
    def full(self) -> int:
        """Bytes per number, at least those of float32."""
        return max(self.product, FULL)

    @property
    def casts(self) -> bool:
        """True if linear layers keep bfloat16 copies of weights and inputs."""
        return self.autocast and self.element > HALF


@dataclass(frozen=True)
class Row:
    """A packed row of n prompts with P tokens and N answers with C tokens.

    Args:
        shared: the row has each prompt once.
    """

    prompts: int
    answers: int
    prompt_tokens: int
    answer_tokens: int
    shared: bool = True

    @property
    def tokens(self) -> int:
        """S = n P + N (C - 1), or N (P + C - 1)."""
        return (self.prompts if self.shared else self.answers) * self.prompt_tokens + self.fed

    @property
    def fed(self) -> int:
        """Tokens of answers that the model reads."""
        return self.answers * (self.answer_tokens - 1)

    @property
    def predicted(self) -> int:
        """M = N C."""
        return self.answers * self.answer_tokens


@dataclass(frozen=True)
class Saved:
    """Bytes kept between the forward and the backward pass.

    Args:
        ends: of embedding, last norm and predicting hidden states.
        recomputed: of one layer that a checkpoint computes again.
    """

    decoder: int
    vision: int
    ends: int
    recomputed: int

    @property
    def total(self) -> int:
        return self.decoder + self.vision + self.ends


def saved(sizes: ModelSizes, row: Row, patches: int, arithmetic: Arithmetic, checkpointed: bool) -> Saved:
    """Bytes kept by a pass over a row with image patches."""
    tower, base, stream = sizes.decoder, sizes.trains_base, arithmetic.element
    # On CUDA the expanded keys and values include the answers'.
    expands = arithmetic.cuda and row.shared
    layer = _layer(tower, row.tokens, arithmetic, base, stream, bare=row.fed if expands else 0)
    if expands:
        length = row.prompt_tokens + row.answer_tokens - 1
        layer += 2 * row.answers * length * tower.kv_heads * tower.head_size * arithmetic.product
    kept = row.tokens * tower.width * stream if checkpointed else layer
    # The last norm, and its result for predicting tokens.
    ends = row.tokens * tower.width * (FULL + (stream if base else 0)) + row.tokens * FULL
    ends += row.predicted * tower.width * arithmetic.product
    if not base and not checkpointed:
        # No gradient reaches beyond the first adapters.
        ends -= row.tokens * (tower.width + 1) * FULL
    # Cosines and sines of positions, for queries and keys.
    ends += 2 * row.tokens * tower.head_size * stream
    seen, again = 0, layer
    if sizes.vision is not None and patches:
        seen, block = _vision(sizes.vision, patches, arithmetic, base, checkpointed)
        again = max(again, block)
    return Saved(tower.layers * kept, seen, ends, again if checkpointed else 0)


def _layer(
    tower: Tower,
    tokens: int,
    arithmetic: Arithmetic,
    trains_base: bool,
    stream: int,
    fused: bool = False,
    bare: int = 0,
) -> int:
    """Bytes kept by a layer.

    Args:
        stream: bytes per number of the residual stream.
        bare: tokens without keys and values of their own.
    """
    attended, product = tower.heads * tower.head_size, arithmetic.product
    # A norm keeps its float32 input and, to train its weight, the normalized input.
    norms = 2 * tower.width * (FULL + (stream if trains_base else 0)) + 2 * FULL
    linear = _linear_inputs(tower, arithmetic, trains_base, fused)
    keys = tower.kv_heads * tower.head_size
    values = 3 * attended if fused else keys
    attention = product * (2 * attended + keys + values) + arithmetic.full * tower.heads
    inside = product * tower.feed_forward * (3 if tower.gated else 1)
    total = tokens * (norms + linear + attention + inside) - bare * 2 * keys * product
    return total + (HALF * tower.linear if arithmetic.casts else 0)


def _linear_inputs(tower: Tower, arithmetic: Arithmetic, trains_base: bool, fused: bool) -> int:
    """Bytes per token that linear layers and adapters keep."""
    wide, attended, inner = tower.width, tower.heads * tower.head_size, tower.feed_forward
    if not trains_base and tower.adapters:
        ranks = tower.adapters * (HALF if arithmetic.autocast else FULL)
        if arithmetic.element < FULL:  # peft casts every input to the adapters' float32.
            return tower.adapted * (HALF if arithmetic.autocast else FULL) + ranks
        if arithmetic.autocast:
            return tower.adapted * HALF + ranks
        return (2 * wide + attended + inner + tower.adapters) * arithmetic.element
    if arithmetic.casts:
        copies = (1 if fused else 3) + (2 if tower.gated else 1)
        return HALF * (copies * wide + attended + inner)
    return arithmetic.element * (2 * wide + attended + inner)


def _vision(
    vision: Vision, patches: int, arithmetic: Arithmetic, trains_base: bool, checkpointed: bool
) -> tuple[int, int]:
    """Bytes kept by the vision tower, and by one of its layers.

    A merger keeps its norm's input, its own input, and its activation's input and result. To train the norm's
    weight, a merger also keeps the normalized input.
    """
    tower, stream = vision.tower, arithmetic.product
    block = _layer(tower, patches, arithmetic, trains_base, stream, fused=True)
    kept = patches * tower.width * stream if checkpointed else block
    norm = tower.width * (FULL + (stream if trains_base else 0)) + FULL
    merger = 3 * tower.width * arithmetic.product
    pixels = vision.patch * arithmetic.product if trains_base else 0
    casts = HALF * (vision.parameters - tower.layers * tower.layer) if arithmetic.casts else 0
    first = 0 if trains_base or checkpointed else (tower.width + 1) * FULL
    return tower.layers * kept + patches * (vision.mergers * (norm + merger) + pixels - first) + casts, block
