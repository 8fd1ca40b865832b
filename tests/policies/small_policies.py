"""Rollouts and policies with adapters, for the tests of policies."""

from functools import partial

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy, LoRA

TEMPERATURE = 0.7
PROMPT_LENGTHS, ANSWER_LENGTHS = (5, 1, 3), ((4, 1, 6), (2, 6, 3), (1, 5, 5))


def ragged(seed=0, steps=8):
    """Rollouts of three prompts with three answers each, all of different lengths; no answer fills all columns."""
    draw = torch.Generator().manual_seed(seed)
    actions = torch.randint(3, 250, (3, 3, steps), generator=draw)
    mask = torch.arange(steps) < torch.tensor(ANSWER_LENGTHS)[..., None]
    ids = torch.randint(3, 250, (3, 6), generator=draw)  # a column more than the longest prompt
    prompt_mask = torch.arange(6) >= 6 - torch.tensor(PROMPT_LENGTHS)[:, None]
    return Rollouts(actions * mask, mask, {"prompt_ids": ids * prompt_mask, "prompt_mask": prompt_mask})


def loaded(directory, kind=CausalLMPolicy, **options):
    policy = kind(str(directory), **options)
    policy.load()
    return policy


def with_lora(directory, **options):
    return loaded(directory, dtype="float64", lora=LoRA(rank=4, alpha=16), **options)


def adapted(directory, name="default", **options):
    """A model with adapters of peft's, and its tokenizer."""
    from peft import LoraConfig, get_peft_model

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    config = LoraConfig(r=4, task_type="CAUSAL_LM", **{"target_modules": "all-linear"} | options)
    return get_peft_model(model, config, name), AutoTokenizer.from_pretrained(directory)


def exact_norms(model):
    """transformers computes them in float32, whatever the dtype, and rounding would hide what is wrong."""
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = partial(_rms_norm, module.weight, module.variance_epsilon)


def _rms_norm(weight, epsilon, states):
    return torch.nn.functional.rms_norm(states, weight.shape, weight, epsilon)


def gradients(policy):
    """Of the parameters that have one, which forget it."""
    found = {name: weight.grad.clone() for name, weight in policy.named_parameters() if weight.grad is not None}
    policy.zero_grad()
    return found


def perturb(policy):
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
