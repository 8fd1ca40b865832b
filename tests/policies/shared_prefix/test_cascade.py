"""Attention over a shared prompt equals attention over prompt and answer written out, forward and backward."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from lightning_cgrpo.policies.shared_prefix.attention import causal_attention
from lightning_cgrpo.policies.shared_prefix.cascade import _expanded_attention, shared_attention

N, G, C, P, D = 3, 4, 5, 6, 8


def inputs(heads, kinds, dtype=torch.float64, seed=0):
    draw = torch.Generator().manual_seed(seed)
    shapes = [(N, G, C, heads, D), (N, G, C, kinds, D), (N, G, C, kinds, D), (N, P, kinds, D), (N, P, kinds, D)]
    return [
        (3 * torch.randn(shape, generator=draw, dtype=torch.float64)).to(dtype).requires_grad_() for shape in shapes
    ]


def written_out(query, key, value, prompt_key, prompt_value, lengths, scale):
    out = torch.zeros_like(query)
    share = query.shape[3] // key.shape[3]
    for i in range(N):
        for j in range(G):
            for head in range(query.shape[3]):
                kind = head // share
                keys = torch.cat([prompt_key[i, : lengths[i], kind], key[i, j, :, kind]])
                values = torch.cat([prompt_value[i, : lengths[i], kind], value[i, j, :, kind]])
                scores = query[i, j, :, head] @ keys.T * scale
                seen = torch.ones(C, len(keys)).tril(lengths[i]).bool()
                out[i, j, :, head] = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ values
    return out


@pytest.mark.parametrize("attend", [shared_attention, _expanded_attention])
@pytest.mark.parametrize(("heads", "kinds"), [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("lengths", [(6, 6, 6), (6, 1, 4)])
def test_equals_attention_written_out(attend, heads, kinds, lengths):
    tensors = inputs(heads, kinds)
    bias = None
    if min(lengths) < P:
        bias = torch.zeros(N, 1, 1, P, dtype=torch.float64)
        bias.masked_fill_(torch.arange(P) >= torch.tensor(lengths)[:, None, None, None], -torch.inf)
    ours = attend(*tensors, bias, 0.3)
    theirs = written_out(*tensors, lengths, 0.3)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    weights = torch.randn(ours.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradients = [torch.autograd.grad(attended, tensors, weights) for attended in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-11)


def test_half_precision_is_that_of_the_kernel():
    tensors = inputs(4, 2, torch.bfloat16)
    half = shared_attention(*tensors, None, 0.3)
    exact = shared_attention(*(tensor.double() for tensor in tensors), None, 0.3)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), exact, rtol=0, atol=0.06)
    assert (half.double() - exact).abs().mean() < 0.01


class Asked(TorchFunctionMode):
    """Notes for how many heads of keys and values PyTorch's attention is asked."""

    def __init__(self):
        super().__init__()
        self.heads = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.heads.append([tensor.shape[1] for tensor in args[:3]])
        return func(*args, **(kwargs or {}))


def test_a_gpu_in_float32_gets_as_many_heads_of_keys_as_of_queries():
    """It has no kernel for fewer: PyTorch would compute and keep all scores (the math kernel)."""
    query, key = (torch.zeros(2, 3, 5, heads, 16, device="meta") for heads in (4, 2))
    prompt = torch.zeros(2, 7, 2, 16, device="meta")
    with Asked() as asked:
        shared_attention(query, key, key, prompt, prompt, None, 0.25)
        causal_attention(torch.zeros(2, 7, 4, 16, device="meta"), prompt, prompt, 0.25)
    assert asked.heads == [[4, 4, 4]] * 2
