"""The packed row without padding: its merge equals the padded CPU path, and CUDA's kernel takes its arguments."""

from itertools import pairwise

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lightning_cgrpo.policies.shared_prefix import attention
from lightning_cgrpo.policies.shared_prefix.attention import PackedAttention
from lightning_cgrpo.policies.shared_prefix.layout import Layout
from lightning_cgrpo.policies.shared_prefix.varlen import Attends, Flash, Spans, packed_attention

SCALE = 0.3


class Written:
    """The kernel by its definition, a sequence and a head at a time."""

    def forward(self, query, key, value, how):
        attended, norm = torch.zeros_like(query), query.new_zeros(query.shape[1], len(query))
        for of_query, of_key in self.sequences(how):
            for head, kind in self.heads(query, key):
                scores = self.scores(query[of_query, head], key[of_key, kind], how)
                norm[head, of_query] = scores.logsumexp(-1)
                attended[of_query, head] = scores.softmax(-1) @ value[of_key, kind]
        return attended, norm

    def backward(self, gradient, query, key, value, attended, norm, how):
        found = [torch.zeros_like(tensor) for tensor in (query, key, value)]
        for of_query, of_key in self.sequences(how):
            for head, kind in self.heads(query, key):
                q, k, v = query[of_query, head], key[of_key, kind], value[of_key, kind]
                g, out = gradient[of_query, head], attended[of_query, head]
                shares = (self.scores(q, k, how) - norm[head, of_query][:, None]).exp()
                of_scores = shares * (g @ v.T - (g * out).sum(-1, keepdim=True)) * how.scale
                found[0][of_query, head] += of_scores @ k
                found[1][of_key, kind] += of_scores.T @ q
                found[2][of_key, kind] += shares.T @ g
        return tuple(found)

    @staticmethod
    def sequences(how):
        ends = how.queries.ends.tolist(), how.keys.ends.tolist()
        spans = [[slice(*pair) for pair in pairwise(one)] for one in ends]
        return zip(*spans, strict=True)

    @staticmethod
    def heads(query, key):
        share = query.shape[1] // key.shape[1]
        return [(head, head // share) for head in range(query.shape[1])]

    @staticmethod
    def scores(query, key, how):
        scores = query @ key.T * how.scale
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        return scores.masked_fill(hidden, -torch.inf) if how.causal else scores


def row(layout, heads, kinds, width=4, dtype=torch.float64):
    size = layout.position_ids.shape[1]
    draw = torch.Generator().manual_seed(0)
    shapes = (size, heads, width), (size, kinds, width), (size, kinds, width)
    return [torch.randn(shape, generator=draw, dtype=dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(("heads", "kinds"), [(2, 2), (4, 2), (3, 1)])
@pytest.mark.parametrize(
    ("prompts", "answers", "group"),
    [
        ([3, 3], [4, 4, 4, 4], [0, 0, 1, 1]),
        ([5, 1, 3], [2, 6, 3, 1, 4], [0, 0, 1, 2, 2]),  # an answer of one token has none in the row
        ([2, 4], [3, 1], [0, 1]),  # the second prompt is followed by nothing
    ],
)
def test_equals_the_padded_path(monkeypatch, heads, kinds, prompts, answers, group):
    layout = Layout.of(torch.tensor(prompts), torch.tensor(answers), torch.tensor(group))
    tensors = row(layout, heads, kinds)
    padded = PackedAttention(layout)(0, *tensors, SCALE)
    packed = packed_attention(*tensors, layout.spans, SCALE, Written())
    torch.testing.assert_close(packed, padded, rtol=0, atol=1e-12)
    weights = torch.randn(packed.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradients = [torch.autograd.grad(attended, tensors, weights) for attended in (packed, padded)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-11)
    # Where the flash kernel runs, a pass takes this way.
    monkeypatch.setattr(attention, "runs_flash", lambda query: True)
    monkeypatch.setattr(attention, "Flash", Written)
    assert torch.equal(PackedAttention(layout)(0, *tensors, SCALE), packed)


def test_the_kernel_of_cuda_takes_these_arguments():
    layout = Layout.of(torch.tensor([3, 2]), torch.tensor([4, 2, 3]), torch.tensor([0, 0, 1]))
    tensors = row(layout, heads=4, kinds=2, width=16, dtype=torch.bfloat16)
    with FakeTensorMode(allow_non_fake_inputs=True):
        query, key, value = (torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda") for tensor in tensors)
        how = layout.spans
        ends = torch.empty_like(how.prompts.ends, device="cuda")
        attends = Attends(Spans(ends, 3), Spans(ends, 3), True, SCALE)
        attended, norm = Flash().forward(query, key, value, attends)
        assert attended.shape == query.shape and attended.dtype == torch.bfloat16
        assert norm.shape == (4, len(query)) and norm.dtype == torch.float32
        found = Flash().backward(attended, query, key, value, attended, norm, attends)
        assert [tensor.shape for tensor in found] == [query.shape, key.shape, value.shape]
