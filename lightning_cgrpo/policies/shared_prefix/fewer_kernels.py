"""Norms and rotations in fewer kernels than transformers' loops of small ones.

A decoded step, and a short training pass on a GPU, are bound by the host, which launches kernels one by one. In a
decoded step of a layer of Qwen 2, transformers' norms and rotations take 22 of 44 kernels; these take 4. They replace
transformers' own only where both give the same numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import rms_norm

ROTATION = "apply_rotary_pos_emb"
"""Name of the rotation in transformers' files of models."""
CLOSE = 1e-5
"""Largest difference in float32 that rounding explains."""

Rotation = Callable[..., tuple[Tensor, Tensor]]


class FewerKernels:
    """Finds the replaceable norms and rotations of a transformers model."""

    def __init__(self, network: nn.Module) -> None:
        self._norms: list[tuple[dict[str, Any], Callable[[Tensor], Tensor]]] = []
        files: set[ModuleType] = set()
        for module in network.modules():
            file = sys.modules.get(type(module).__module__)
            if file is not None:
                files.add(file)
            # A module with a forward of its own, such as a hook's, stays.
            kind: Any = type(module)
            if _is_rms_norm(kind) and "forward" not in module.__dict__:
                self._norms.append((module.__dict__, _Norm(module)))
        self._files = [file for file in files if _rotates_halves(getattr(file, ROTATION, None))]

    @contextmanager
    def used(self, training: bool = False) -> Iterator[None]:
        """Context in which the model computes with fewer kernels.

        Args:
            training: of passes with many tokens, and with gradients.
        """
        rotations = [(file, getattr(file, ROTATION)) for file in self._files]
        kind = _RotateMany if training else _Rotate
        try:
            for file, original in rotations:
                setattr(file, ROTATION, kind(original))
            for attributes, norm in self._norms:
                attributes["forward"] = norm
            yield
        finally:
            for file, original in rotations:
                setattr(file, ROTATION, original)
            for attributes, _ in self._norms:
                del attributes["forward"]


class _Norm:
    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.epsilon = _epsilon_of(module)

    def __call__(self, states: Tensor) -> Tensor:
        weight = self.module.weight
        assert isinstance(weight, Tensor)
        # Transformers rounds float64 to float32.
        if states.dtype != weight.dtype or states.dtype == torch.float64:
            return type(self.module).forward(self.module, states)
        normalized = rms_norm(states, weight.shape, weight, self.epsilon)
        # Under autocast, every layer that reads the norm would cast it.
        kind = states.device.type
        if torch.is_autocast_enabled(kind):
            return normalized.to(torch.get_autocast_dtype(kind))
        return normalized


class _Rotate:
    """Rotates queries ``[1, H, S, D]`` and keys ``[1, K, S, D]`` by cosines and sines ``[1, S, D]``.

    Transformers computes x cos + (-x₂, x₁) sin, with the halves x₁ and x₂ of x. This is a product of each token's x
    with a matrix ``[D, D]``, which all layers of a step share.
    """

    def __init__(self, original: Rotation) -> None:
        self.original = original
        self._sin: Tensor | None = None  # of the matrices
        self._matrices = torch.zeros(0)  # [S, D, D]

    def __call__(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *others: Any, **options: Any) -> Any:
        same_dtype = query.dtype == key.dtype == cos.dtype
        if others or options or not _rotates_one_row(query, key, cos) or not same_dtype:
            return self.original(query, key, cos, sin, *others, **options)
        if sin is not self._sin:  # of another step, or another kind of layer
            self._sin = sin
            self._matrices = _rotation_matrices(cos[0], sin[0])
        return self._rotated(query), self._rotated(key)

    def _rotated(self, states: Tensor) -> Tensor:
        return torch.bmm(states[0].transpose(0, 1), self._matrices).transpose(0, 1)[None]


class _RotateMany:
    """`_Rotate` of many tokens, for which matrices would be large, with derivatives.

    The turned halves (-x₂, x₁) times sin are (x₂, x₁) times (-sin₁, sin₂).
    """

    def __init__(self, original: Rotation) -> None:
        self.original = original
        self._sin: Tensor | None = None  # of the last layer
        # Cosines, signed sines, and these with their halves swapped, [1, 1, S, D].
        self._factors: tuple[Tensor, ...] = ()

    def __call__(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *others: Any, **options: Any) -> Any:
        if others or options or not _rotates_one_row(query, key, cos):
            return self.original(query, key, cos, sin, *others, **options)
        if sin is not self._sin:
            first, second = sin.chunk(2, -1)
            signed = torch.cat([-first, second], -1)
            swapped = torch.cat([second, -first], -1)
            self._sin = sin
            self._factors = (cos.unsqueeze(1), signed.unsqueeze(1), swapped.unsqueeze(1))
        return _Rotation.apply(query, *self._factors), _Rotation.apply(key, *self._factors)


def _rotates_one_row(query: Tensor, key: Tensor, cos: Tensor) -> bool:
    """True for one row of tokens whose whole heads are rotated."""
    return cos.dim() == 3 and len(cos) == len(query) == 1 and cos.shape[-1] == query.shape[-1] == key.shape[-1]


class _Rotation(torch.autograd.Function):
    """x cos + (x₂, x₁) s for states x and signed sines s = (s₁, s₂); its transpose is g cos + (g₂, g₁) (s₂, s₁)."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, cos: Tensor, signed: Tensor, swapped: Tensor) -> Tensor:
        ctx.save_for_backward(cos, swapped)
        return _rotated(states, cos, signed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        cos, swapped = ctx.saved_tensors
        return _rotated(gradient, cos, swapped), None, None, None


def _rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """X cos + (x₂, x₁) sin, computed in the factors' dtype and rounded once; in memory, the result lies as x does."""
    result = torch.empty_like(states)
    first_result, second_result = result.chunk(2, -1)
    first_product, second_product = (states * cos).chunk(2, -1)
    first, second = states.chunk(2, -1)
    first_sin, second_sin = sin.chunk(2, -1)
    torch.addcmul(first_product, second, first_sin, out=first_result)
    torch.addcmul(second_product, first, second_sin, out=second_result)
    return result


def _rotation_matrices(cos: Tensor, sin: Tensor) -> Tensor:
    """Matrices ``[S, D, D]`` whose products with rows x are the rows' rotations, from cosines and sines ``[S, D]``."""
    same = torch.eye(cos.shape[-1], dtype=cos.dtype, device=cos.device)
    # Column j of the product with `turned` is -x_(j + D/2) in the first half, and x_(j - D/2) in the second.
    half = cos.shape[-1] // 2
    turned = torch.cat([-same[:, half:], same[:, :half]], 1)
    return torch.addcmul(same * cos[:, None], turned, sin[:, None])


def _epsilon_of(module: Any) -> float:
    return float(getattr(module, "variance_epsilon", getattr(module, "eps", 0.0)))


@cache
def _is_rms_norm(kind: Any) -> bool:
    """Whether modules of a class compute x weight / sqrt(mean(x²) + epsilon), tried on the CPU in float32."""
    if not kind.__name__.endswith("RMSNorm") or kind is nn.RMSNorm:
        return False
    draw = torch.Generator("cpu").manual_seed(0)
    weight = torch.randn(16, generator=draw, device="cpu")
    states = torch.randn(3, 16, generator=draw, device="cpu")
    # A norm with further parts, such as a gate or a weight plus one, raises here or gives other numbers.
    pretended: Any = SimpleNamespace(weight=weight, variance_epsilon=1e-3, eps=1e-3)
    try:
        normalized = kind.forward(pretended, states)
    except Exception:  # of transformers' own code
        return False
    return _are_close(normalized, rms_norm(states, weight.shape, weight, 1e-3))


@cache
def _rotates_halves(rotation: Rotation | None) -> bool:
    """Whether a function rotates as `_Rotate` does, tried on the CPU in float32."""
    if rotation is None:
        return False
    draw = torch.Generator("cpu").manual_seed(0)
    shapes = ((1, 4, 3, 16), (1, 2, 3, 16), (1, 3, 16), (1, 3, 16))
    arguments = [torch.randn(shape, generator=draw, device="cpu") for shape in shapes]
    try:
        rotated = rotation(*arguments)
    except Exception:  # of transformers' own code
        return False
    expected = _Rotate(rotation)(*arguments)
    return all(_are_close(first, second) for first, second in zip(rotated, expected, strict=True))


def _are_close(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.allclose(first, second, rtol=CLOSE, atol=CLOSE)
