"""The work of an update, from a run's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule

from lightning_cgrpo.cli.configuration import Config, ConfigError
from lightning_cgrpo.cli.loading import instantiate as build
from lightning_cgrpo.cli.preparation import prepare
from lightning_cgrpo.modules.constrained_grpo import ConstrainedGRPO
from lightning_cgrpo.modules.supervised import SupervisedFineTuning
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.samplers.generation import GenerationSampler
from lightning_cgrpo.samplers.transformers_engine import TransformersEngine


@dataclass(frozen=True)
class Workload:
    """An update of the process with the most prompts. Passes count answers, or steps of a small policy.

    Args:
        prompts: B.
        all_prompts: of all processes.
        group_size: G; 1 in supervised fine-tuning.
        prompt_tokens: P, images included.
        answer_tokens: C.
        passes: sizes of training passes, for each optimizer step of an epoch.
        reference_passes: sizes; none without a KL term.
        old_passes: sizes, for old log-probabilities.
        generated: prompts generated at once in this process, if any.
        filtered: sampling sorts the vocabulary (top_p, top_k).
        patches: of a prompt's images.
    """

    prompts: int
    all_prompts: int
    group_size: int
    prompt_tokens: int
    answer_tokens: int
    passes: tuple[tuple[int, ...], ...]
    epochs: int = 1
    reference_passes: tuple[int, ...] = ()
    old_passes: tuple[int, ...] = ()
    generated: int = 0
    samples: bool = False
    filtered: bool = False
    patches: int = 0
    images: int = 0

    @property
    def answers(self) -> int:
        return self.prompts * self.group_size

    @property
    def accumulates(self) -> bool:
        return any(len(step) > 1 for step in self.passes)


def instantiate(config: Config) -> tuple[LightningModule, LightningDataModule]:
    """Module and data module of a run, nothing loaded."""
    config = {**config, "ckpt_path": None}
    prepare("plan", config)
    made = build(config, model=LightningModule, data=LightningDataModule)
    return made["model"], made["data"]


def workload(
    module: LightningModule,
    data: LightningDataModule,
    gpus: int,
    prompt_tokens: int,
    answer_tokens: int,
    patches: int = 0,
    images: int = 0,
) -> Workload:
    """The work of an update on `gpus` processes."""
    every = getattr(data, "prompts_per_update", None)
    if not isinstance(every, int):
        raise ConfigError(f"Expected data with prompts_per_update, but got {type(data).__name__}.")
    local = -(-every // gpus)
    common: dict[str, Any] = {
        "prompts": local,
        "all_prompts": every,
        "prompt_tokens": prompt_tokens,
        "answer_tokens": answer_tokens,
        "patches": patches,
        "images": images,
    }
    if isinstance(module, SupervisedFineTuning):
        return Workload(**common, group_size=1, passes=(pieces(local, module.micro_batch_size),))
    if not isinstance(module, ConstrainedGRPO):
        raise ConfigError(
            f"Expected model to be ConstrainedGRPO or SupervisedFineTuning, but got {type(module).__name__}."
        )
    how, size = module.optimization, module.group_size
    # A small policy trains on single steps, a language model on answers in groups that stay together.
    language = isinstance(module.policy, CausalLMPolicy)
    whole, units = (size, size) if language else (1, size * answer_tokens)
    tokens = how.micro_batch_tokens
    most = how.micro_batch_size if tokens is None else answers_within(tokens, prompt_tokens, answer_tokens, size)
    everything = pieces(local * units, most)
    steps = optimizer_steps(every * units, local * units, whole, how.minibatch_size)
    generated, filtered = 0, False
    if isinstance(module.sampler, GenerationSampler) and isinstance(module.sampler.engine, TransformersEngine):
        batch, sampling = module.sampler.batch_size, module.sampler.sampling
        generated = min(local, local if batch is None else max(batch // size, 1))
        filtered = sampling.top_p < 1 or sampling.top_k is not None
    return Workload(
        **common,
        group_size=size,
        passes=tuple(pieces(rows, most) for rows in steps),
        epochs=how.epochs,
        reference_passes=everything if module.needs_reference else (),
        old_passes=everything if language and len(steps) > 1 else (),
        generated=generated,
        samples=True,
        filtered=filtered,
    )


def longest_answer(module: LightningModule) -> int:
    """Tokens of the longest sampled answer, or steps of the longest episode."""
    sampler: Any = getattr(module, "sampler", None)
    sampling = getattr(sampler, "sampling", None)
    return int(sampling.max_new_tokens if sampling is not None else sampler.environment.max_steps)


def pieces(rows: int, size: int | None) -> tuple[int, ...]:
    """Rows of each micro-batch, as `minibatches.micro_batches` cuts them.

    Example:
        >>> pieces(10, 4)
        (4, 4, 2)
    """
    if size is None or rows <= size:
        return (rows,)
    whole, rest = divmod(rows, size)
    return (size,) * whole + (rest,) * bool(rest)


def answers_within(tokens: int, prompt: int, answer: int, group_size: int) -> int:
    """Answers of full length in a micro-batch of `tokens`, as `token_batches` cuts them if prompts are shared.

    Example:
        >>> answers_within(100, 10, 20, 4)
        4
        >>> answers_within(120, 10, 20, 4)
        5
    """
    groups, rest = divmod(tokens, prompt + group_size * answer)
    return max(groups * group_size + max(rest - prompt, 0) // answer, 1)


def optimizer_steps(total: int, units: int, group_size: int, minibatch_size: int | None) -> tuple[int, ...]:
    """A process's units in each minibatch of an epoch, as `minibatches.minibatches` cuts them.

    Args:
        total: units of all processes.
        units: of this process.
        minibatch_size: units over all processes; None for one minibatch.

    Example:
        >>> optimizer_steps(32, 16, 4, 16)
        (8, 8)
    """
    if minibatch_size is None or total <= minibatch_size:
        return (units,)
    if minibatch_size >= group_size:
        count = -(-(total // group_size) // (minibatch_size // group_size))
        return tuple(group_size * share for share in _shares(units // group_size, count))
    return _shares(units, -(-total // minibatch_size))


def _shares(total: int, count: int) -> tuple[int, ...]:
    """Sizes of `torch.Tensor.tensor_split`, at least 1, because a process without rows makes an empty pass."""
    whole, rest = divmod(total, count)
    return tuple(max(whole + (number < rest), 1) for number in range(count))
