"""Answers by conversations with tools and users."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.core.distributed import on_host
from lightning_cgrpo.core.errors import UserError, expect, valid_text
from lightning_cgrpo.core.prompts.source import PromptSource
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signal, read_steps
from lightning_cgrpo.core.user_code import called, import_callable
from lightning_cgrpo.objective.signals import SignalKind
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.rendering import VARIABLES
from lightning_cgrpo.samplers.conversation.environments import Environments, tools_by_name
from lightning_cgrpo.samplers.conversation.template import ChatTemplate
from lightning_cgrpo.samplers.conversation.tools import Tool, environment_tools, own_reward, tool_schema
from lightning_cgrpo.samplers.conversation.turns import converse
from lightning_cgrpo.samplers.conversation.world import Conversation, Conversations, event_kinds, event_signals
from lightning_cgrpo.samplers.generation import GenerationSampler, split_groups
from lightning_cgrpo.samplers.sampler import Noise


class ConversationSampler(GenerationSampler):
    """Answers each prompt by G conversations, in which the policy calls tools until a turn has no call.

    An environment with a method ``user_message(turn)`` replies to a turn without calls; None ends the conversation.

    At each turn, the engine gets the token ids of all earlier turns and replies. Prompts are chat messages; the model's
    chat template presents the tools. Results of tools are context: loss, ratios, KL and lengths count the policy's own
    tokens (`Rollouts.mask`). Errors of calls are told to the policy. Signals of
    events: see `event_signals`; with an environment's ``get_reward``, also its reward under the name of its class.

    In `info`, besides the entries of `GenerationSampler`:

    - ``messages``: B lists of G lists of messages
    - ``turns``: B lists of G lists of `Turn`
    - ``environments``: B lists of G environments, if there is a factory
    - ``prompts``: then the B prompts with the texts of ``reset``
    - ``truncated``: also answers whose last call got no reply, because of a limit, or whose user failed to reply

    Args:
        max_new_tokens: most tokens of a conversation after its prompt, with all replies.
        tools: functions with type hints and docstrings, or their import paths.
        environment_factory: makes an environment per conversation, or its import path: a class with ``reset(**row)``,
            whose text is added to the prompt; the other public methods but `user_message` are tools. Environments are
            used again.
        max_turns: most turns of the policy; None for no limit.
        time_limit: seconds for a call or a user's reply, which then runs in a thread; None for no limit.
        sampling: further arguments of `GenerationSampler`. The repetition penalty also counts the tokens of replies.
    """

    def __init__(
        self,
        max_new_tokens: int,
        tools: Sequence[str | Callable[..., Any]] = (),
        environment_factory: str | Callable[[], Any] | None = None,
        max_turns: int | None = None,
        time_limit: float | None = 60.0,
        **sampling: Any,
    ) -> None:
        super().__init__(max_new_tokens, **sampling)
        expect(max_turns is None or max_turns >= 1, "max_turns", "at least 1", max_turns)
        expect(time_limit is None or time_limit > 0, "time_limit", "greater than 0", time_limit)
        self.max_turns = max_turns
        self.time_limit = time_limit
        # Tools are functions, and methods of the environments.
        self._functions: list[Tool] = [import_callable(tool, "tools") for tool in tools]
        factory = None if environment_factory is None else import_callable(environment_factory, "environment_factory")
        self._environments = Environments(factory)
        self._names = self._checked_names()
        # Their events are signals, and so is the environments' own reward.
        reward = self._environments.reward
        kinds = event_kinds(self._names)
        if reward is not None:
            kinds = kinds | {reward: "any"}
        self.signals: Mapping[str, SignalKind] = kinds
        self._template: ChatTemplate | None = None

    def _checked_names(self) -> list[str]:
        """The names of the tools.

        Raises:
            UserError: there is neither a tool nor a user, or two tools have one name.
        """
        tools = list(self._functions)
        for environment in self._environments.example:
            tools += environment_tools(environment)
        names = [tool.__name__ for tool in tools]
        if not names and not self._environments.has_user:
            raise UserError(
                "Expected tools, or an environment_factory with further methods or user_message, but got neither."
            )
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UserError(f"Expected tools of different names, but got '{twice[0]}' twice.")
        return names

    @cached_property
    def tools(self) -> Sequence[dict[str, Any]]:  # type: ignore[override]
        tools = tools_by_name(self._functions, self._environments.example)
        return [tool_schema(tool) for tool in tools.values()]

    def _begin_conversation(self, environments: Sequence[Any]) -> Conversation:
        """A conversation with the tools and the user of its environment; `environments` has at most this one."""
        user = environments[0].user_message if self._environments.has_user else None
        return Conversation(tools_by_name(self._functions, environments), user)

    def template(self, policy: CausalLMPolicy) -> ChatTemplate:
        if self._template is None or self._template.tokenizer is not policy.tokenizer:
            self._template = ChatTemplate(policy, self.tools, self._environments.has_user)
        return self._template

    def check(self, policy: CausalLMPolicy, source: PromptSource) -> None:
        self.template(policy)
        super().check(policy, source)

    def _read_prompts(self, policy: CausalLMPolicy, prompts: PromptGroups) -> dict[str, Tensor]:
        for name in VARIABLES:
            if any(prompts.columns.get(name, ())):
                remedy = "policy.chat_template_kwargs" if name != "tools" else "the sampler's tools"
                raise UserError(
                    f"Expected prompts of conversations without the column '{name}', because replies are written alike "
                    f"in all of them, but got it, try {remedy}, or another name of the column."
                )
        return super()._read_prompts(policy, prompts)

    def rollout(self, policy: CausalLMPolicy, prompts: PromptGroups, group_size: int, noise: Noise) -> Rollouts:
        answers = len(prompts) * group_size
        # 1. The prompts, with what their environments say first.
        environments = self._environments.take(answers)
        template = self.template(policy)
        prompts = self._add_starts(prompts, environments, group_size, template)
        # 2. One conversation for each answer.
        talks = [self._begin_conversation(environments[row : row + 1]) for row in range(answers)]
        world = Conversations(template, talks, self.max_turns, self.time_limit, policy.stop_tokens)
        inputs = self._read_fitting_prompts(policy, prompts)
        draws = noise(group_size, self.sampling.max_new_tokens)
        with self.engine.session(policy):
            rollouts = converse(self.engine, policy, inputs, group_size, self.sampling, draws, world)
        rollouts = self._with_texts(policy, rollouts)
        self._record_cut_turns(world, rollouts)
        # 3. Facts about the conversations, by group.
        info = dict(rollouts.info)
        info["messages"] = split_groups([talk.messages for talk in talks], group_size)
        info["turns"] = split_groups([talk.turns for talk in talks], group_size)
        if environments:
            info["prompts"] = prompts.columns["prompt"]
            info["environments"] = split_groups(environments, group_size)
            self._environments.drop([talk.hung for talk in talks])
        if self._environments.reward is not None:
            rewards = [own_reward(environment) for environment in environments]
            info["own_reward"] = split_groups(rewards, group_size)
        cut = torch.tensor([talk.cut for talk in talks], dtype=torch.bool, device=rollouts.mask.device)
        info["truncated"] = cut.view(len(prompts), group_size)
        return replace(rollouts, info=info)

    def measured(self, rollouts: Rollouts) -> dict[str, Signal]:
        signals = event_signals(rollouts.info["turns"], self._names, rollouts.mask)
        name = self._environments.reward
        if name is not None:
            rewards = list(chain.from_iterable(rollouts.info["own_reward"]))
            signals[name] = Signal.of(rewards, rollouts)
        return signals

    def _add_starts(
        self, prompts: PromptGroups, environments: Sequence[Any], group_size: int, template: ChatTemplate
    ) -> PromptGroups:
        """The prompts with the texts of the environments' resets added to the last message.

        Raises:
            UserError: environments of a group start with different texts, which cannot share a prompt.
        """
        if not environments:
            return prompts
        texts_or_chats = list(prompts.column("prompt", "ConversationSampler"))
        for number, group in enumerate(split_groups(environments, group_size)):
            # 1. Reset the group's environments with the columns of their prompt.
            row = {}
            for name, column in prompts.columns.items():
                value = column[number]
                row[name] = value.tolist() if isinstance(value, Tensor) else value
            first, *others = [_reset_environment(environment, row) for environment in group]
            if any(other != first for other in others):
                raise UserError(
                    f"Expected the environments of a group to start with the same text, but got {first!r:.60} and "
                    "others, try to draw at random from the columns of the prompt alone."
                )
            # 2. Add their text to a prompt that is a text, or to the last message of a chat.
            if first is None:
                continue
            start = template.harmless(first)
            if isinstance(texts_or_chats[number], str):
                texts_or_chats[number] += start
            else:
                *before, last = texts_or_chats[number]
                texts_or_chats[number] = [*before, {**last, "content": _add_text(last["content"], start)}]
        return PromptGroups(prompts.index, {**prompts.columns, "prompt": texts_or_chats})

    def _record_cut_turns(self, world: Conversations, rollouts: Rollouts) -> None:
        """Record the turns that the limit of tokens ended."""
        actions = rollouts.actions.flatten(0, 1)
        mask = rollouts.mask.flatten(0, 1)
        cut, actions, mask = on_host(rollouts.info["truncated"].flatten(), actions, mask)
        for row in cut.nonzero()[:, 0].tolist():
            tokens = actions[row][read_steps(mask[row])]
            world.cut_off(row, tokens.tolist())


def _add_text(content: str | list[dict[str, Any]], text: str) -> str | list[dict[str, Any]]:
    """A message's content, a text or parts, and a text after it."""
    if isinstance(content, str):
        return content + text
    return [*content, {"type": "text", "text": text}]


def _reset_environment(environment: Any, row: Mapping[str, Any]) -> str | None:
    """Reset an environment; returns its text, also of a content in parts.

    Raises:
        UserError: a part is no text.
    """
    name = f"{type(environment).__name__}.reset"
    observation = called(environment.reset, row, name, None)
    if observation is None:
        return None
    if not isinstance(observation, list):
        return valid_text(observation)
    texts = []
    for part in observation:
        text = part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            raise UserError(
                f"Expected {name} to return a text, None, or a list of text parts, but got {observation!r:.80}."
            )
        texts.append(text)
    return valid_text("".join(texts))
