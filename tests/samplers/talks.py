"""Chat templates, a policy that has one, and a sampler whose turns call a tool."""

from types import SimpleNamespace

import torch

from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.tiny.text import TEXTS, build_model, train_tokenizer
from lightning_cgrpo.samplers.conversation.sampler import ConversationSampler
from lightning_cgrpo.samplers.conversation.template import ChatTemplate
from lightning_cgrpo.samplers.conversation.tools import tool_schema
from tests.policies.small_policies import exact_norms
from tests.samplers.rolled import noise_for

HERMES = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}{{ '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- else %}{{ '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}{%- endif %}{{ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
# As Llama 3: a call is a whole turn, without marks.
BARE = HERMES.replace("<tool_call>\\n", "").replace("\\n</tool_call>", "").replace('"arguments"', '"parameters"')
# As Qwen 3: an empty reasoning part in the last turn alone.
REASONING = HERMES.replace(
    "{%- else %}{{ '<|im_start|>' + message.role + '\\n' + message.content }}",
    """{%- else %}{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' and (loop.last or message.reasoning_content) %}
{{- '<think>\\n' + (message.reasoning_content or '') + '\\n</think>\\n\\n' }}{% endif %}{{ message.content }}""",
)


def add(a: int, b: int) -> int:
    """
    Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


TOOLS = [tool_schema(add)]


def made(template=HERMES, short_turns=False):
    tokenizer = train_tokenizer(TEXTS, 400, ["<tool_call>", "</tool_call>"])
    tokenizer.chat_template = template
    model = build_model(tokenizer, 32, 2, 4, 64, 2048, seed=0).double()
    exact_norms(model)
    policy = CausalLMPolicy.from_model(model, tokenizer)
    if short_turns:  # many tokens end them
        policy.stop_tokens = tuple(sorted({*policy.stop_tokens, *range(20, 120)}))
    return policy


def chats(count=2):
    return PromptGroups(torch.arange(count), {"prompt": [[{"role": "user", "content": t}] for t in TEXTS[:count]]})


class Scripted(ConversationSampler):
    """Talks as usual, but takes every turn for one that asks for the same call."""

    call = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    talking = 3  # turns with a call

    def template(self, policy):
        # The many stop tokens shorten turns, and belong to no template.
        known = {"tokenizer": policy.tokenizer, "stop_tokens": (policy.tokenizer.eos_token_id,), "name": "tiny"}
        template = ChatTemplate(SimpleNamespace(**known, chat_template_kwargs={}), self.tools)
        outer = self

        class Asking:
            text, reply, harmless = map(staticmethod, (template.text, template.reply, template.harmless))

            def parse(self, tokens):
                asking = tokens[0] % 4 < outer.talking  # some conversations are shorter
                return template.parse(template._token_ids(outer.call) if asking else tokens)

        return Asking()


def rolled(policy, sampler=None, group=4, prompts=None):
    prompts = chats() if prompts is None else prompts
    sampler = sampler or Scripted(100, [add], max_turns=4)
    return sampler, sampler.rollout(policy, prompts, group, noise_for(prompts))
