"""Conversations with a user, who replies to turns without calls."""

import time

import pytest
import torch

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import read_steps
from lightning_cgrpo.samplers.conversation.sampler import ConversationSampler
from lightning_cgrpo.samplers.conversation.template import ChatTemplate
from tests.samplers import talks
from tests.samplers.talks import REASONING, add, made


class Asker:
    """A user who asks as often as the prompt says."""

    def reset(self, times, heard, **row):
        self.left, self.heard = times, heard  # a list of the data, which each environment may change

    def user_message(self, turn):
        self.heard.append(turn)
        self.left -= 1
        return f"And after {len(self.heard)}?" if self.left >= 0 else None


@pytest.fixture(scope="module")
def policy():
    return made(short_turns=True)


def chats(times):
    prompts = talks.chats(len(times))
    prompts.columns |= {"times": torch.tensor(times), "heard": [[] for _ in times]}
    return prompts


def rolled(policy, sampler, times=(0, 2)):
    return talks.rolled(policy, sampler, 3, chats(times))[1]


def test_the_user_replies_until_the_user_ends_the_conversation(policy):
    rollouts = rolled(policy, ConversationSampler(300, environment_factory=Asker))
    for row, times in enumerate((0, 2)):
        for number, messages in enumerate(rollouts.info["messages"][row]):
            assert [message["role"] for message in messages] == ["assistant", "user"] * times + ["assistant"]
            assert [message["content"] for message in messages[1::2]] == ["And after 1?", "And after 2?"][:times]
            heard = rollouts.info["environments"][row][number].heard
            assert heard == [message["content"] for message in messages[::2]]
    signals = ConversationSampler(300, environment_factory=Asker).measured(rollouts)
    assert signals["turns"].value.tolist() == [[1, 1, 1], [3, 3, 3]] and not rollouts.info["truncated"].any()


def test_the_users_words_are_context_in_the_templates_tokens(policy):
    rollouts = rolled(policy, ConversationSampler(300, environment_factory=Asker))
    template = ChatTemplate(policy, [], user=True)
    actions, mask = rollouts.actions[1, 0], rollouts.mask[1, 0]
    turns = rollouts.info["turns"][1][0]
    said = [message["content"] for message in rollouts.info["messages"][1][0][1::2]]
    for turn, following, words in zip(turns[:-1], turns[1:], said, strict=True):
        reply = template.reply([{"role": "user", "content": words}])
        assert actions[turn.end : turn.end + len(reply)].tolist() == reply
        assert not mask[turn.end : turn.end + len(reply)].any() and mask[turn.end - 1]
        assert mask[turn.end + len(reply) : following.end].all()
    assert read_steps(mask).sum() == turns[-1].end


def test_the_last_turn_gets_no_reply(policy):
    rollouts = rolled(policy, ConversationSampler(300, environment_factory=Asker, max_turns=2), (9,))
    assert [len(turns) for turns in rollouts.info["turns"][0]] == [2, 2, 2]


@pytest.mark.parametrize("late", [False, True])
def test_a_user_who_fails_ends_the_conversation(policy, late):
    class Failing(Asker):
        def user_message(self, turn):
            if not late:
                raise RuntimeError("gone")
            time.sleep(0.5)

    sampler = ConversationSampler(300, environment_factory=Failing, time_limit=0.01)
    with pytest.warns(UserWarning, match="user_message raised (TimeLimitError|RuntimeError)"):
        rollouts = rolled(policy, sampler)
    assert rollouts.info["truncated"].all() and [len(turns) for turns in rollouts.info["turns"][0]] == [1, 1, 1]
    assert len(sampler._environments._instances) == (0 if late else 6), (
        "one that may still be running is not used again"
    )


def test_tools_and_a_user(policy):
    """Calls are answered by tools, and other turns by the user, who is no tool."""
    sampler = ConversationSampler(300, [add], environment_factory=Asker)
    assert [tool["function"]["name"] for tool in sampler.tools] == ["add"]
    rollouts = rolled(policy, sampler)
    assert [len(turns) for turns in rollouts.info["turns"][1]] == [3, 3, 3] and not rollouts.info["truncated"].any()


def test_a_template_that_drops_reasoning_is_named():
    """Reasoning was part of what the policy has seen; a template without it would be another context."""
    with pytest.raises(UserError, match="earlier turns differently once the user replies"):
        ChatTemplate(made(REASONING), [], user=True)
