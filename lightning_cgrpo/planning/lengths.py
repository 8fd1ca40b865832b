"""How long prompts and answers are: as said, or as long as a run allows; never longer, since the run would end."""

from __future__ import annotations

from lightning.pytorch import LightningModule

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.modules.supervised import SupervisedFineTuning
from lightning_cgrpo.planning.sizes import ModelSizes
from lightning_cgrpo.planning.workload import longest_answer
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy

PROMPT_TOKENS = 512
"""Assumed where nothing says how long prompts are."""


def answer_length(module: LightningModule, said: int | None) -> int:
    """Tokens of an answer, or a small policy's steps.

    Args:
        said: by the command line; None for as many as are allowed.

    Raises:
        UserError: more are said than are sampled (in supervised fine-tuning the data has the answers).
    """
    longest = longest_answer(module)
    if said is not None and said > longest and not isinstance(module, SupervisedFineTuning):
        raise UserError(
            f"Expected --answer-tokens to be at most {longest}, which the sampler's max_new_tokens (or the "
            f"environment's max_steps) allows, but got {said}, try less, or more of that."
        )
    return longest if said is None else said


def prompt_length(
    module: LightningModule,
    policy: CausalLMPolicy,
    sizes: ModelSizes,
    answer: int,
    said: int | None,
    notes: list[str],
    images: int = 0,
) -> int:
    """Tokens of a prompt, those of its images included.

    Args:
        module: samples, or trains on given answers.
        policy: its max_prompt_tokens bounds all tokens.
        sizes: of its model, which has positions for prompt and answer.
        answer: its tokens.
        said: tokens by the command line, without those of `images`; None for as many as are allowed.
        notes: gets what was assumed.
        images: tokens of images.

    Raises:
        UserError: the prompt is longer than allowed.
    """
    longest = answer if isinstance(module, SupervisedFineTuning) else longest_answer(module)
    room = None if sizes.context is None else sizes.context - longest
    allowed = min((limit for limit in (policy.max_prompt_tokens, room) if limit is not None), default=None)
    if said is not None:
        tokens = said + images
    elif allowed is None or (policy.max_prompt_tokens is None and allowed > PROMPT_TOKENS):
        notes.append(f"Nothing says how long prompts are: taken to have {PROMPT_TOKENS} tokens (--prompt-tokens).")
        tokens = max(PROMPT_TOKENS, images)
    else:
        notes.append(f"Prompts are taken to be as long as allowed, {allowed} tokens (--prompt-tokens).")
        tokens = max(allowed, images, 1)
    seen = f", {images} of them images'" if images else ""
    if policy.max_prompt_tokens is not None and tokens > policy.max_prompt_tokens:
        raise UserError(
            f"Expected prompts of at most max_prompt_tokens, {policy.max_prompt_tokens}, but got {tokens} "
            f"tokens{seen}, try less, or a larger max_prompt_tokens."
        )
    if room is not None and tokens > room:
        raise UserError(
            f"Expected prompt and answer to fit into the {sizes.context} positions of '{sizes.name}', but got a prompt "
            f"of {tokens} tokens{seen} and answers of up to {longest}, try less of either."
        )
    return tokens
