"""Casts together: autocast's values and gradients, and arguments that CUDA takes."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from lightning_cgrpo.policies.shared_prefix.cast_products import cast_together, gradient_of_weight

HALF = torch.bfloat16


class Network(nn.Module):
    """A layer that is used twice, a layer without bias, a frozen layer, and an output layer."""

    def __init__(self):
        super().__init__()
        self.twice, self.plain, self.frozen = nn.Linear(8, 8), nn.Linear(8, 6, bias=False), nn.Linear(6, 6)
        self.output = nn.Linear(6, 5)
        self.frozen.requires_grad_(False)

    def get_output_embeddings(self):
        return self.output

    def forward(self, states):
        return self.output(self.frozen(self.plain(self.twice(self.twice(states).relu()))))


def network():
    torch.manual_seed(0)
    return Network(), torch.randn(3, 4, 8, requires_grad=True)


def gradients(network, made, states):
    wanted = [states, *(weight for weight in network.parameters() if weight.requires_grad)]
    return torch.autograd.grad(made.square().sum(), wanted)


def test_values_and_gradients_are_those_of_autocast():
    """Weights' gradients to the last bit; those of biases are not rounded to half precision."""
    one, states = network()
    with torch.autocast("cpu", HALF, cache_enabled=False):
        expected = one(states)
        with cast_together(one, HALF):
            found = one(states)
    assert torch.equal(found, expected) and found.dtype == HALF
    of_found, of_expected = (gradients(one, made, states) for made in (found, expected))
    for own, other in zip(of_found, of_expected, strict=True):
        assert own.dtype == torch.float32
        if own.dim() > 1:
            assert torch.equal(own, other)
        else:
            torch.testing.assert_close(own, other, rtol=0.01, atol=0.01)
    assert one.frozen.weight.grad is None


def test_layers_are_themselves_afterwards():
    """Also after an error; the output layer, a layer with a forward of its own, and other dtypes stay inside, too."""
    one, _ = network()
    one.plain.forward = own = one.plain.forward
    one.frozen.double()
    with pytest.raises(RuntimeError, match="inside"), cast_together(one, HALF):
        assert [name for name, layer in one.named_children() if "forward" in layer.__dict__] == ["twice", "plain"]
        assert one.plain.forward == own
        raise RuntimeError("inside")
    assert "forward" not in one.twice.__dict__ and one.plain.forward == own


def test_cuda_multiplies_into_float32():
    """The product of half-precision factors that CUDA alone has, on tensors that hold nothing."""
    with FakeTensorMode():
        one, other = (torch.empty(shape, device="cuda", dtype=HALF) for shape in ((5, 6), (5, 8)))
        made = gradient_of_weight(one.T, other, torch.float32)
    assert made.dtype == torch.float32 and made.shape == (6, 8)
