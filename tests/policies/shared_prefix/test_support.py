"""Configurations with which prompts can't be shared, named by what stands against it."""

from types import SimpleNamespace

import pytest
from torch import nn

from lightning_cgrpo.policies.shared_prefix.support import obstacle


class Model:
    """As much of a causal model as is asked."""

    _supports_attention_backend = True

    def __init__(self, head: nn.Module | None = None, backend: bool = True, **settings: object) -> None:
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(**settings))
        self.base_model = object()
        self.head = nn.Linear(2, 3, bias=False) if head is None else head
        self._supports_attention_backend = backend

    def get_output_embeddings(self) -> nn.Module:
        return self.head


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (Model(), None),
        (Model(layer_types=["full_attention"], sliding_window=8), None),  # no layer slides
        (Model(logits_scaling=1, final_logit_softcapping=None), None),
        (Model(sliding_window=8), "sliding window of 8"),
        (Model(layer_types=["full_attention", "sliding_attention"]), "sliding_attention"),
        (Model(backend=False), "cannot replace the attention"),
        (Model(logits_scaling=8.0), "logits_scaling"),
        (Model(head=nn.Linear(2, 3)), "not a plain linear layer"),
        (Model(head=nn.Identity()), "not a plain linear layer"),
    ],
)
def test_obstacles(model: Model, word: str | None) -> None:
    found = obstacle(model)
    assert found is None if word is None else word in found
