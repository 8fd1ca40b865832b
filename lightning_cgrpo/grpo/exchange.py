"""Exchange of whole groups between processes, so that all have equally many tokens in every optimizer step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from lightning_cgrpo.core.distributed import gathered, on_host, world
from lightning_cgrpo.core.rollout import Examples, read
from lightning_cgrpo.grpo.minibatches import Share

INPUTS, SHARED, TARGETS = "inputs/", "shared/", "targets/"
Shape = tuple[torch.dtype, tuple[int, ...]]


def assign(tokens: Sequence[int], steps: Sequence[Sequence[int]], processes: int) -> list[int]:
    """A process for each group: longest group first, to the process with the fewest tokens in the group's steps.

    Args:
        tokens: of each group.
        steps: the optimizer step of each group, for every epoch.

    Example:
        >>> assign([5, 3, 2, 4], steps=[[0, 0, 0, 0]], processes=2)
        [0, 1, 0, 1]
    """
    if not tokens:
        return []
    step = np.array(steps)  # [epochs, groups]
    epochs = np.arange(len(step))
    loads = np.zeros((len(step), step.max() + 1, processes), dtype=np.int64)
    total = np.zeros(processes, dtype=np.int64)
    owners = np.zeros(len(tokens), dtype=np.int64)
    for group in np.argsort(-np.array(tokens), kind="stable"):
        load = loads[epochs, step[:, group]].sum(0)
        owners[group] = np.lexsort((total, load))[0]  # of several, the process with the fewest tokens in all steps
        loads[epochs, step[:, group], owners[group]] += tokens[group]
        total[owners[group]] += tokens[group]
    return owners.tolist()


@dataclass(frozen=True)
class Exchange:
    """Moves groups of answers to the processes that train on them, and values of the answers back.

    Args:
        share: this process's answers after the exchange.
        order: ``[B]`` on the device, this process's groups, by the process that gets them.
        sent: groups for each process.
        received: groups from each process.
        shapes: dtype and largest shape, without the first dimension, of every tensor on any process.
    """

    share: Share
    order: Tensor
    sent: list[int]
    received: list[int]
    shapes: Mapping[str, Shape]

    @classmethod
    def balancing(
        cls, examples: Examples, share: Share, epochs: Sequence[Sequence[Tensor]], shares_prompts: bool
    ) -> Exchange:
        """Plan the exchange that balances tokens. Collective.

        Args:
            examples: of whole answers.
            share: before the exchange.
            epochs: each epoch's `partition`. Parts smaller than a group cut groups, and count as one part.
            shares_prompts: a prompt counts once for a group, not for each answer.
        """
        size, rank = share.group_size, world()[0]
        shapes = {name: (tensor.dtype, tuple(tensor.shape[1:])) for name, tensor in _tensors(examples).items()}
        processes = gathered((group_tokens(examples, size, shares_prompts), shapes))
        starts = np.cumsum([0, *(len(tokens) for tokens, _ in processes)])
        owners = np.array(
            assign([count for tokens, _ in processes for count in tokens], steps_of(epochs, share), len(processes)),
            np.int64,
        )
        mine, groups = owners[starts[rank] : starts[rank + 1]], np.flatnonzero(owners == rank)
        origins = np.searchsorted(starts, groups, side="right") - 1
        return cls(
            share=replace(share, numbers=torch.from_numpy((groups[:, None] * size + np.arange(size)).flatten())),
            order=torch.from_numpy(mine.argsort(kind="stable")).to(examples.actions.device, non_blocking=True),
            sent=np.bincount(mine, minlength=len(processes)).tolist(),
            received=np.bincount(origins, minlength=len(processes)).tolist(),
            shapes=_largest([shapes for _, shapes in processes]),
        )

    def moved(self, examples: Examples) -> Examples:
        """The answers that this process trains on. Collective."""
        tensors, groups = _tensors(examples), {}
        for name, (dtype, shape) in self.shapes.items():
            tensor = tensors.get(name)
            if tensor is None:  # images, where no prompt of this process has one
                tensor = torch.zeros(len(self.order), *shape, dtype=dtype, device=examples.actions.device)
            tensor = _padded(tensor.to(dtype), shape, left=name.startswith(SHARED + "prompt_"))
            shared = name.startswith(SHARED)
            groups[name] = tensor if shared else tensor.unflatten(0, (len(self.order), self.share.group_size))
        packed = _packed(groups)[self.order]
        received = packed.new_empty(sum(self.received), packed.shape[1])
        dist.all_to_all_single(received, packed, self.received, self.sent)
        moved = _unpacked(received, groups)
        moved = {name: part if name.startswith(SHARED) else part.flatten(0, 1) for name, part in moved.items()}
        inputs, shared_inputs, targets = (
            {name.removeprefix(kind): tensor for name, tensor in moved.items() if name.startswith(kind)}
            for kind in (INPUTS, SHARED, TARGETS)
        )
        group = torch.arange(len(received), device=received.device).repeat_interleave(self.share.group_size)
        return Examples(inputs, moved["actions"], moved["mask"], group, shared_inputs, targets)

    def returned(self, values: Mapping[str, Tensor], steps: int) -> dict[str, Tensor]:
        """Values ``[N', T']`` of moved answers, on the processes that sampled them, as ``[N, steps]``. Collective."""
        answers = {
            name: part.unflatten(0, (sum(self.received), self.share.group_size)) for name, part in values.items()
        }
        packed = _packed(answers)
        received = packed.new_empty(len(self.order), packed.shape[1])
        dist.all_to_all_single(received, packed, self.sent, self.received)
        ordered = torch.empty_like(received).index_copy(0, self.order, received)
        return {name: part.flatten(0, 1)[:, :steps] for name, part in _unpacked(ordered, answers).items()}


def group_tokens(examples: Examples, group_size: int, shares_prompts: bool) -> list[int]:
    """Tokens of each group in a training pass, with a prompt once or for each answer; of episodes, the steps."""
    tokens = read(examples.mask).sum(-1).view(-1, group_size).sum(-1)
    if "prompt_mask" in examples.shared:
        tokens = tokens + examples.shared["prompt_mask"].sum(-1) * (1 if shares_prompts else group_size)
    return on_host(tokens)[0].tolist()


def steps_of(epochs: Sequence[Sequence[Tensor]], share: Share) -> list[list[int]]:
    """The number of each group's part, for every epoch; 0 where parts cut groups."""
    size = share.group_size
    step_of_group = np.zeros((len(epochs), share.total // size), dtype=np.int64)
    for epoch, parts in enumerate(epochs):
        for number, part in enumerate(parts):
            if len(part) >= size:
                step_of_group[epoch, part[::size].numpy() // size] = number
    return step_of_group.tolist()


def _packed(groups: Mapping[str, Tensor]) -> Tensor:
    """The bytes ``[B, bytes]`` of all tensors ``[B, ...]``, so that one collective moves them."""
    rows = [tensor.contiguous().view(len(tensor), tensor.shape[1:].numel()) for tensor in groups.values()]
    return torch.cat([row.view(torch.uint8) for row in rows], dim=1)


def _unpacked(packed: Tensor, groups: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of `_packed` bytes ``[B', bytes]``, with types and shapes of `groups`."""
    sizes = [tensor.shape[1:].numel() * tensor.itemsize for tensor in groups.values()]
    parts = zip(groups.items(), packed.split(sizes, dim=1), strict=True)
    return {
        # A copy, because bytes of another tensor's row may not be aligned.
        name: part.clone(memory_format=torch.contiguous_format).view(tensor.dtype).view(len(packed), *tensor.shape[1:])
        for (name, tensor), part in parts
    }


def _tensors(examples: Examples) -> dict[str, Tensor]:
    kinds = {INPUTS: examples.inputs, SHARED: examples.shared, TARGETS: examples.targets}
    named = {kind + name: tensor for kind, tensors in kinds.items() for name, tensor in tensors.items()}
    return {"actions": examples.actions, "mask": examples.mask, **named}


def _largest(shapes: Sequence[Mapping[str, Shape]]) -> dict[str, Shape]:
    """The largest size of every dimension, by name in alphabetical order, because processes may lack some names."""
    largest: dict[str, Shape] = {}
    for name in sorted({name for named in shapes for name in named}):
        sizes = [named[name] for named in shapes if name in named]
        largest[name] = sizes[0][0], tuple(map(max, zip(*(shape for _, shape in sizes), strict=True)))
    return largest


def _padded(tensor: Tensor, shape: Sequence[int], left: bool) -> Tensor:
    """A tensor ``[B, ...]`` with zeros up to ``[B, *shape]``; prompts have their padding on the left."""
    missing = [most - size for most, size in zip(shape, tensor.shape[1:], strict=True)]
    sides = [side for count in reversed(missing) for side in ((count, 0) if left else (0, count))]
    return pad(tensor, sides) if any(sides) else tensor
