"""The packed row: every token has its place, in the row and in the rectangles of attention."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_cgrpo.policies.shared_prefix.layout import Layout


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.lists(st.integers(1, 5), min_size=1, max_size=4)), min_size=1, max_size=4)
)
def test_everything_is_where_the_definition_puts_it(groups):
    prompts = torch.tensor([length for length, _ in groups])
    answers = torch.tensor([length for _, lengths in groups for length in lengths])
    group = torch.tensor([row for row, (_, lengths) in enumerate(groups) for _ in lengths])
    layout = Layout.of(prompts, answers, group)
    names = [(row, None, step) for row, (length, _) in enumerate(groups) for step in range(length)]
    names += [
        (row, column, step)
        for row, (_, lengths) in enumerate(groups)
        for column, length in enumerate(lengths)
        for step in range(length - 1)
    ]
    assert layout.prompt_tokens == int(prompts.sum())
    positions = [step if column is None else groups[row][0] + step for row, column, step in names]
    assert layout.position_ids.tolist() == [positions]
    expected = []
    for row, (length, lengths) in enumerate(groups):
        for column, steps in enumerate(lengths):
            expected.append((row, None, length - 1))
            expected += [(row, column, step) for step in range(steps - 1)]
    assert [names[index] for index in layout.predictors.tolist()] == expected

    cut = layout.prompt_tokens
    tokens = torch.arange(1, len(names) + 1)[:, None]
    padded = layout.prompts.pad(tokens[:cut])
    assert padded.shape == (len(groups), int(prompts.max()), 1)
    for number, (row, _, step) in enumerate(names[:cut], 1):
        assert padded[row, step, 0] == number
    assert int((padded > 0).sum()) == cut
    assert torch.equal(layout.prompts.unpad(padded), tokens[:cut])
    if layout.answers is None:
        assert len(names) == cut
        return
    padded = layout.answers.pad(tokens[cut:])
    for number, (row, column, step) in enumerate(names[cut:], cut + 1):
        assert padded[row, column, step, 0] == number
    assert int((padded > 0).sum()) == len(names) - cut
    assert torch.equal(layout.answers.unpad(padded), tokens[cut:])


def test_equal_lengths_are_not_copied():
    layout = Layout.of(torch.tensor([3, 3]), torch.tensor([4, 4, 4, 4]), torch.tensor([0, 0, 1, 1]))
    assert layout.answers is not None
    tokens = torch.rand(12, 2)
    assert layout.answers.pad(tokens).data_ptr() == tokens.data_ptr()
    assert layout.prompt_bias(torch.float32) is None
