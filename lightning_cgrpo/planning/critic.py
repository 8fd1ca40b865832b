"""Memory of a critic: its weights and optimizer in every phase, and its own training passes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lightning_cgrpo.critic.critic_advantages import CriticAdvantages
from lightning_cgrpo.critic.language_critic import LanguageCritic
from lightning_cgrpo.planning.activations import saved
from lightning_cgrpo.planning.execution import Execution, optimizer_state
from lightning_cgrpo.planning.memory import Memory, arithmetic_of, small_policy_memory, standing, training_phases
from lightning_cgrpo.planning.sizes import ModelSizes, language_model_sizes
from lightning_cgrpo.planning.tokens import training_rows
from lightning_cgrpo.planning.workload import Workload, optimizer_steps, pieces

NOTE = "The critic's memory is counted; its tokens, operations and communication are not."

STANDING = ("weights", "reference", "optimizer", "buckets of gradients")
"""Parts of a policy that exist in every phase, see `standing`."""


def with_critic(
    memory: Memory, learned: CriticAdvantages, components: int, work: Workload, how: Execution, config: Path | None
) -> Memory:
    """The memory of a run, and its critic's: J = `components` heads."""
    state, temporaries = optimizer_state(learned, how.device == "cpu")
    how = replace(how, state_bytes=state, temporaries=temporaries)
    critic, learning = learned.critic, learned.learning
    language = isinstance(critic, LanguageCritic)
    whole, units = (work.group_size, work.group_size) if language else (1, work.group_size * work.answer_tokens)
    parts = optimizer_steps(work.all_prompts * units, work.prompts * units, whole, learning.minibatch_size)
    passes = tuple(pieces(rows, learning.micro_batch_size) for rows in parts)
    work = replace(work, passes=passes, reference_passes=(), old_passes=())
    if isinstance(critic, LanguageCritic):
        sizes = value_sizes(language_model_sizes(critic.network, config, how.double), components)
        always = standing(sizes, how, reference=False) | {"buckets of gradients": 0}  # no part of DDP
        row = max(training_rows(work, sizes.obstacle is None), key=lambda row: row.tokens)
        arithmetic = arithmetic_of(sizes, how)
        kept = saved(sizes, row, row.prompts * work.patches, arithmetic, critic.network.gradient_checkpointing)
        phases = training_phases(sizes, row, kept, always, how, arithmetic, work.accumulates)
    else:
        critic.load(components)
        phases = small_policy_memory(critic.network, work, replace(how, sharding="none")).phases
        always = {name: phases["rollout"].get(name, 0) for name in ("weights", "optimizer")}
        phases = {"backward begins": phases["backward begins"]}
    added = {f"critic's {name}": size for name, size in always.items() if size}
    policys = {name: size for name, size in next(iter(memory.phases.values())).items() if name in STANDING}
    own = {
        f"critic: {phase}": policys
        | added
        | {name: size for name, size in parts.items() if size and name not in always}
        for phase, parts in phases.items()
    }
    return Memory({phase: parts | added for phase, parts in memory.phases.items()} | own)


def value_sizes(sizes: ModelSizes, components: int) -> ModelSizes:
    """Sizes of a language model whose output layer is replaced by `components` heads."""
    heads = components * (sizes.decoder.width + 1)
    dropped = 0 if sizes.tied else sizes.vocabulary * sizes.decoder.width
    trained = dropped if sizes.trains_base else 0
    return replace(
        sizes,
        parameters=sizes.parameters - dropped + heads,
        trainable=sizes.trainable - trained + heads,
        weight_bytes=sizes.weight_bytes - dropped * sizes.element + heads * max(sizes.element, 4),
        trainable_bytes=sizes.trainable_bytes - trained * sizes.element + heads * max(sizes.element, 4),
        vocabulary=components,
        tied=False,
    )
