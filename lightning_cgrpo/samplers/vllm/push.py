"""Interface of pushes: ways of a policy's weights into a vLLM server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from lightning_cgrpo.core.json_client import JSONClient
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy

Send = Callable[[JSONClient], None]
"""Replaces the server's weights."""


class WeightPush(ABC):
    """Sends a policy's weights to a vLLM server.

    Attributes:
        backend: of ``--weight-transfer-config``; None if the server needs none.
    """

    backend: str | None = None

    @abstractmethod
    def prepared(self, policy: CausalLMPolicy) -> AbstractContextManager[Send]:
        """Context: the weights are ready. Collective.

        The first process calls `Send`, while all processes are in the context.
        """


def describe_weights(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Tensors in the words of vLLM's `update_info`."""
    return {
        "names": list(weights),
        "dtype_names": [str(weight.dtype).removeprefix("torch.") for weight in weights.values()],
        "shapes": [list(weight.shape) for weight in weights.values()],
    }
