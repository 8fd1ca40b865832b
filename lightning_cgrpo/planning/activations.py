"""What a forward pass keeps for the backward pass, layer by layer.

The counts are those of transformers' modules as autograd sees them, and tests compare them with the tensors that it
saves (`torch.autograd.graph.saved_tensors_hooks`), byte for byte. Of a layer and token (FLOAT: all in one dtype):

    norms           2 (h, h / rms, and their product with the weight)          6 D
    attention       queries H d, keys and values 2 K d, what it returns twice  3 H d + 2 K d, and H log-sum-exps
    feed-forward    gate, its activation, the other branch, their product      4 F (2 F where there is no gate)
"""

from __future__ import annotations

from dataclasses import dataclass

from lightning_cgrpo.planning.sizes import ModelSizes, Tower, Vision

FULL = 4
"""Bytes of float32, in which norms are, and, unless the weights are float64, log-sum-exps and all behind logits."""
HALF = 2


@dataclass(frozen=True)
class Arithmetic:
    """In which dtypes a model computes.

    Args:
        element: bytes of the weights' numbers (of the base model's).
        autocast: whether products are taken in bfloat16 all the same.
        cuda: attention repeats a prompt's keys and values for its answers (`cascade._expanded`).
    """

    element: int
    autocast: bool
    cuda: bool

    @property
    def product(self) -> int:
        """Bytes of what matrix products give."""
        return HALF if self.autocast else self.element

    @property
    def full(self) -> int:
        """Bytes of what is made of products with more digits: float32, or float64 for float64."""
        return max(self.product, FULL)

    @property
    def casts(self) -> bool:
        """Whether every linear layer makes copies of its weight and input of its own, and keeps them."""
        return self.autocast and self.element > HALF


@dataclass(frozen=True)
class Row:
    """A packed row.

    Args:
        prompts: n.
        answers: N.
        prompt_tokens: P.
        answer_tokens: C, of which C - 1 are read and C predicted.
        shared: whether a prompt is in the row once, or once for every answer.
    """

    prompts: int
    answers: int
    prompt_tokens: int
    answer_tokens: int
    shared: bool = True

    @property
    def tokens(self) -> int:
        """S = n P + N (C - 1), or N (P + C - 1)."""
        prompts = self.prompts if self.shared else self.answers
        return prompts * self.prompt_tokens + self.fed

    @property
    def fed(self) -> int:
        """Tokens of answers that are read."""
        return self.answers * (self.answer_tokens - 1)

    @property
    def predicted(self) -> int:
        """M = N C."""
        return self.answers * self.answer_tokens


def layer_saved(
    tower: Tower,
    tokens: int,
    arithmetic: Arithmetic,
    trains_base: bool,
    stream: int | None = None,
    fused: bool = False,
    bare: int = 0,
) -> int:
    """Bytes that a layer keeps.

    Args:
        tokens: S.
        trains_base: whether norms have a gradient for their weight; with adapters they have none.
        stream: bytes of the residual stream's numbers, by default the weights'.
        fused: whether queries, keys and values are one tensor, which values keep alive (the vision tower's).
        bare: tokens whose keys and values aren't kept here (on CUDA those of answers, which are in `expanded`).
    """
    wide, attended = tower.width, tower.heads * tower.head_size
    stream = arithmetic.element if stream is None else stream
    # A norm keeps what it divides (in float32) and, to train its weight, the quotient.
    norms = 2 * wide * (FULL + (stream if trains_base else 0)) + 2 * FULL
    linear = _linear_inputs(tower, arithmetic, trains_base, fused)
    values = 3 * attended if fused else tower.kinds * tower.head_size
    product = arithmetic.product
    attention = product * (2 * attended + tower.kinds * tower.head_size + values) + arithmetic.full * tower.heads
    inside = product * tower.feed_forward * (3 if tower.gated else 1)
    total = tokens * (norms + linear + attention + inside) - bare * 2 * tower.kinds * tower.head_size * product
    return total + (HALF * tower.linear if arithmetic.casts else 0)


def _linear_inputs(tower: Tower, arithmetic: Arithmetic, trains_base: bool, fused: bool) -> int:
    """Bytes per token of what linear layers keep of their inputs."""
    wide, attended, inner = tower.width, tower.heads * tower.head_size, tower.feed_forward
    if not trains_base and tower.adapters:
        ranks = tower.adapters * (HALF if arithmetic.autocast else FULL)
        if arithmetic.element < FULL:  # peft casts every input to the adapters' float32
            return tower.adapted * (HALF if arithmetic.autocast else FULL) + ranks
        if arithmetic.autocast:
            return tower.adapted * HALF + ranks
        return (2 * wide + attended + inner) * arithmetic.element + tower.adapters * arithmetic.element
    if arithmetic.casts:
        copies = (1 if fused else 3) + (2 if tower.gated else 1)
        return HALF * (copies * wide + attended + inner)
    return arithmetic.element * (2 * wide + attended + inner)


def expanded(tower: Tower, row: Row, arithmetic: Arithmetic) -> int:
    """Bytes of the keys and values that `cascade._expanded` repeats in a layer: 2 N (P + C - 1) K d."""
    if not (arithmetic.cuda and row.shared):
        return 0
    length = row.prompt_tokens + row.answer_tokens - 1
    return 2 * row.answers * length * tower.kinds * tower.head_size * arithmetic.product


@dataclass(frozen=True)
class Saved:
    """Bytes kept between the forward and the backward pass.

    Args:
        decoder: of all layers of the language model.
        vision: of the vision tower.
        ends: embedding's outcome, last norm and the hidden states that predict.
        recomputed: of one layer, when checkpoints have it computed again.
    """

    decoder: int
    vision: int
    ends: int
    recomputed: int

    @property
    def total(self) -> int:
        """All that is there when the backward pass begins."""
        return self.decoder + self.vision + self.ends


def saved(sizes: ModelSizes, row: Row, patches: int, arithmetic: Arithmetic, checkpointed: bool) -> Saved:
    """Bytes kept by a pass over a row whose prompts' images have that many patches together."""
    tower, base = sizes.decoder, sizes.trains_base
    stream = arithmetic.element
    bare = row.fed if arithmetic.cuda and row.shared else 0
    layer = layer_saved(tower, row.tokens, arithmetic, base, bare=bare) + expanded(tower, row, arithmetic)
    kept = row.tokens * tower.width * stream if checkpointed else layer
    # Last norm, and what it gives to those that predict.
    ends = row.tokens * tower.width * (FULL + (stream if base else 0)) + row.tokens * FULL
    ends += row.predicted * tower.width * arithmetic.product
    if not base and not checkpointed:
        # Nothing before the first adapters has a gradient.
        ends -= row.tokens * (tower.width + 1) * FULL
    # The cosines and sines of positions, of queries and keys.
    ends += 2 * row.tokens * tower.head_size * stream
    seen, again = 0, layer if checkpointed else 0
    if sizes.vision is not None and patches:
        seen, block = vision_saved(sizes.vision, patches, arithmetic, base, checkpointed)
        again = max(again, block if checkpointed else 0)
    return Saved(tower.layers * kept, seen, ends, again)


def vision_saved(
    vision: Vision, patches: int, arithmetic: Arithmetic, trains_base: bool, checkpointed: bool
) -> tuple[int, int]:
    """Bytes that the vision tower keeps of all patches, and those of one of its layers.

    Under autocast its stream is bfloat16, since it begins with a product. The merger keeps its norm's input and
    quotient, and its own input and activation twice.
    """
    tower, stream = vision.tower, arithmetic.product
    block = layer_saved(tower, patches, arithmetic, trains_base, stream, fused=True)
    kept = patches * tower.width * stream if checkpointed else block
    norm = tower.width * (FULL + (stream if trains_base else 0)) + FULL
    merger = 3 * tower.width * arithmetic.product
    pixels = vision.patch * arithmetic.product if trains_base else 0
    casts = HALF * (vision.parameters - tower.layers * tower.layer) if arithmetic.casts else 0
    first = 0 if trains_base or checkpointed else (tower.width + 1) * FULL
    return tower.layers * kept + patches * (norm + merger + pixels - first) + casts, block
