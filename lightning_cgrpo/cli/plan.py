"""The command ``plan``: bytes of a run's largest tensors on one GPU, before the run.

Of the model, ``plan`` reads config.json alone, and builds the model without memory, on the meta device. GB are 10^9
bytes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jsonargparse.typing import PositiveInt

from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.cli.configuration import Config, ConfigError, get

# torch is imported in functions, because `--help` and misspelled keys must not wait for it.

Parts = dict[str, int]
"""Bytes by purpose."""
PROMPT_TOKENS = 512
"""Assumed length of a prompt if the policy has no `max_prompt_tokens`."""
SAMPLED = 24
"""Bytes per logit of a rollout: logits, scaled logits, probabilities, and a padded and a float64 copy."""
LEFT_OUT = """Not counted: activations other than logits (micro_batch_size and gradient_checkpointing bound them), \
autocast's bfloat16 copies of weights, temporary tensors of the optimizer's step and of top_p and top_k, workspace of \
kernels, fragments of the allocator, the CUDA context (0.5 to 1 GB), observations and other inputs, evaluation, and \
engines in other processes (vLLM)."""


@dataclass(frozen=True)
class Setting:
    """Devices and lengths of an update, on the GPU with the most prompts.

    Args:
        sharded: weights are split over the GPUs (FSDP2).
        mixed: matrix products are bfloat16 under autocast.
        answers: G, to each prompt.
    """

    gpus: int
    sharded: bool
    mixed: bool
    double: bool
    prompts: int
    answers: int
    prompt_tokens: int
    answer_tokens: int

    def share(self, size: float) -> int:
        """Bytes on one GPU of tensors that FSDP2 splits."""
        return -(-round(size) // self.gpus) if self.sharded else round(size)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command ``plan``."""
    parser = argparse.ArgumentParser(
        prog="python -m lightning_cgrpo plan",
        description="Count the bytes of a run's weights, gradients, optimizer, reference, critic, keys and values, and "
        "logits on one GPU.",
        usage="%(prog)s -c FILE... [--KEY=VALUE]... [--gpus N] [--prompt-tokens P]",
        epilog="-c and --KEY=VALUE are those of the run, see `python -m lightning_cgrpo --help`. Formulas and an "
        "example are in docs/plan.md.",
        allow_abbrev=False,
    )
    parser.add_argument("--gpus", metavar="N", type=PositiveInt, help="GPUs of all machines (default: trainer.devices)")
    parser.add_argument("--prompt-tokens", metavar="P", type=PositiveInt, help="of a prompt, its images included")
    options, rest = parser.parse_known_args(argv)
    config, _ = read_arguments("plan", rest)
    show(*plan(config, options.gpus, options.prompt_tokens))


def plan(config: Config, gpus: int | None = None, prompt_tokens: int | None = None) -> tuple[str, dict[str, Parts]]:
    """A heading, and bytes by phase and purpose.

    Args:
        config: merged, resolved and checked.
        gpus: by default the trainer's devices and nodes.
    """
    from lightning.pytorch import LightningDataModule, LightningModule

    from lightning_cgrpo.cli.loading import instantiate
    from lightning_cgrpo.cli.preparation import prepare
    from lightning_cgrpo.policies.causal_lm import CausalLMPolicy

    config = {**config, "ckpt_path": None}
    prepare("plan", config)
    run = instantiate(config, model=LightningModule, data=LightningDataModule)
    module: Any = run["model"]
    policy = module.policy
    setting = _setting(config, module, run["data"].prompts_per_update, gpus, prompt_tokens)
    language = isinstance(policy, CausalLMPolicy)
    network = build(policy, setting) if language else policy
    trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    spread = f"{setting.gpus} GPUs, {'FSDP2' if setting.sharded else 'DDP'}" if setting.gpus > 1 else "1 GPU"
    lengths = f" of {setting.prompt_tokens} tokens, {setting.answers} answers" if language else ""
    heading = (
        f"{type(policy).__name__}{f' {policy.name!r}' if language else ''} trains {trained / 1e6:,.4g} of "
        f"{sum(p.numel() for p in network.parameters()) / 1e6:,.4g} million parameters on {spread}, each with "
        f"{setting.prompts} prompts{lengths} of up to {setting.answer_tokens} steps"
    )
    return heading, _phases(module, network, setting)


def _setting(config: Config, module: Any, prompts: int, gpus: int | None, prompt_tokens: int | None) -> Setting:
    from lightning_cgrpo.modules.supervised import SupervisedFineTuning

    trainer = config.get("trainer") or {}
    devices, precision = trainer.get("devices"), str(trainer.get("precision"))
    count = len(devices) if isinstance(devices, list) else devices if isinstance(devices, int) and devices > 0 else 1
    gpus = gpus or count * int(trainer.get("num_nodes") or 1)
    name = str(get(trainer, "strategy.class_path") or trainer.get("strategy") or "auto").rpartition(".")[2].lower()
    sharded = "fsdp" in name or "modelparallel" in name
    if not sharded and not name.startswith(("auto", "single", "ddp")):
        raise ConfigError(f"Expected a strategy that is auto, DDP or FSDP2, but got '{name}'.")
    return Setting(
        gpus,
        sharded and gpus > 1,
        precision.startswith("bf16"),
        precision.startswith("64"),
        -(-prompts // gpus),
        1 if isinstance(module, SupervisedFineTuning) else module.group_size,
        prompt_tokens or getattr(module.policy, "max_prompt_tokens", None) or PROMPT_TOKENS,
        module.sampler.longest,
    )


def build(policy: Any, setting: Setting) -> Any:
    """The network that a language policy will load, on the meta device.

    Raises:
        UserError: the policy can't load such a model.
    """
    from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
    from lightning_cgrpo.policies.pretrained import with_adapters
    from lightning_cgrpo.policies.vision_language import VisionLanguagePolicy

    if type(policy).load not in (CausalLMPolicy.load, VisionLanguagePolicy.load):
        policy.load()  # a small model of the policy's own
        return policy.network.double() if setting.double else policy.network
    model, _ = policy.pretrained(weights=False)
    if policy.lora is not None:
        model = with_adapters(model, policy.lora)
    network = model.get_base_model() if hasattr(model, "get_base_model") else model
    return network.double() if setting.double else network


def _phases(module: Any, network: Any, setting: Setting) -> dict[str, Parts]:
    """Bytes by phase: rollout, training, and the critic's training."""
    from lightning_cgrpo.modules.supervised import SupervisedFineTuning

    policy, estimator = module.policy, getattr(module, "critic_advantages", None)
    always = standing(network, module, setting)
    if getattr(module, "needs_reference", False) and getattr(policy, "lora", None) is None:
        always["reference"] = setting.share(nbytes(network))
    if setting.gpus > 1 and not setting.sharded:
        always["DDP's copy of gradients"] = nbytes(network, trained=True)
    rollout, training = gathered(network, setting), training_parts(network, setting)
    if network is not policy:
        generated, logits = language_parts(network, module, setting)
        rollout, training = rollout | generated, training | logits
    phases = {"rollout": rollout, "training": training}
    if isinstance(module, SupervisedFineTuning):
        del phases["rollout"]
    if estimator is not None:
        critic = critic_network(estimator.critic, len(module.objective.component_names), setting)
        always |= {f"critic's {name}": size for name, size in standing(critic, estimator, setting).items()}
        phases["critic's training"] = training_parts(critic, setting)
    return {phase: {name: size for name, size in (always | parts).items() if size} for phase, parts in phases.items()}


def nbytes(network: Any, trained: bool = False) -> int:
    """Bytes of a network's parameters, a shared parameter once."""
    return sum(p.nbytes for p in network.parameters() if p.requires_grad or not trained)


def standing(network: Any, owner: Any, setting: Setting) -> Parts:
    """Weights, and the optimizer's state by a step on a small matrix (AdamW: twice the trained weights)."""
    import torch

    weight = torch.nn.Parameter(torch.ones(64, 64))
    optimizer = owner.make_optimizer([weight])
    weight.grad = torch.ones(64, 64)
    optimizer.step()
    state = sum(v.nbytes for v in optimizer.state[weight].values() if torch.is_tensor(v) and v.dim())
    kept = state / weight.nbytes * nbytes(network, trained=True)
    return {"weights": setting.share(nbytes(network)), "optimizer": setting.share(kept)}


def training_parts(network: Any, setting: Setting) -> Parts:
    """Gradients, and the layers that FSDP2 gathers in a pass."""
    return {"gradients": setting.share(nbytes(network, trained=True)), **gathered(network, setting, layers=2)}


def gathered(network: Any, setting: Setting, layers: int | None = None) -> Parts:
    """FSDP2's whole weights: everything in a rollout, in a pass `layers` layers and all that is in no layer."""
    from lightning_cgrpo.policies.pretrained import recomputable_layers

    def size(parameters: Iterable[Any]) -> int:
        return sum(2 * p.numel() if setting.mixed else p.nbytes for p in parameters)

    if not setting.sharded:
        return {}
    total, sizes = size(network.parameters()), [size(layer.parameters()) for layer in recomputable_layers(network)]
    return {"gathered weights": total if layers is None else total - sum(sorted(sizes)[:-layers])}


def critic_network(critic: Any, components: int, setting: Setting) -> Any:
    """A critic's network, with its value heads in place of the output layer."""
    import torch

    from lightning_cgrpo.grpo.critic.language_critic import LanguageCritic

    if not isinstance(critic, LanguageCritic):
        critic.load(components)
        return critic
    network = build(critic.network, setting)
    weight = network.get_output_embeddings().weight
    network.set_output_embeddings(torch.nn.Identity())
    dtype = torch.promote_types(weight.dtype, torch.float32)
    return torch.nn.ModuleList([network, torch.nn.Linear(weight.shape[1], components, dtype=dtype, device="meta")])


def language_parts(network: Any, module: Any, setting: Setting) -> tuple[Parts, Parts]:
    """Keys, values and logits of a rollout, and logits of training.

    L layers have K heads of size d; n prompts of P tokens are generated at once, with G answers of C tokens each.
    Keys and values are 2 L K d n (P + G (C - 1)) numbers, or 2 L K d n G (P + C - 1) without shared prompts. Logits of
    training are a chunk, its probabilities and its gradient; of models that cap logits, all tokens are one chunk.
    """
    from lightning_cgrpo.policies.shared_prefix.log_probs import chunk_rows
    from lightning_cgrpo.policies.shared_prefix.support import obstacle, output_obstacle
    from lightning_cgrpo.samplers.transformers_engine import TransformersEngine

    element = 2 if setting.mixed else network.get_input_embeddings().weight.element_size()
    vocabulary = len(network.get_output_embeddings().weight)
    batch = getattr(getattr(module, "optimization", module), "micro_batch_size", None)
    tokens = (batch or setting.prompts * setting.answers) * setting.answer_tokens
    if output_obstacle(network) is None:
        tokens = min(tokens, chunk_rows(vocabulary, "cuda"))
    training = {"logits": 3 * tokens * vocabulary * max(element, 4)}
    if not isinstance(getattr(module.sampler, "engine", None), TransformersEngine):
        return {}, training
    text, sampler, fed = network.config.get_text_config(), module.sampler, setting.answer_tokens - 1
    at_once = min(setting.prompts, max((sampler.sampling.batch_size or 10**9) // setting.answers, 1))
    cached = setting.prompt_tokens + setting.answers * fed
    if not module.policy.share_prompts or obstacle(network) is not None:
        cached = setting.answers * (setting.prompt_tokens + fed)
    return {
        "keys and values": 2 * sum(map(_cached_width, text.per_layer_config)) * at_once * cached * element,
        "logits": at_once * setting.answers * vocabulary * SAMPLED,
    }, training


def _cached_width(layer: Any) -> int:
    """K d of a layer's configuration; 0 without attention heads."""
    heads = getattr(layer, "num_attention_heads", 0)
    size = getattr(layer, "head_dim", None) or layer.hidden_size // max(heads, 1)
    return int(size * (getattr(layer, "num_key_value_heads", None) or heads))


def show(heading: str, phases: dict[str, Parts]) -> None:
    """Print the phases as columns, and what they leave out."""
    from rich.table import Table

    from lightning_cgrpo.core.output import print_table

    table = Table(show_edge=False, header_style="")
    for name in ("GB on one GPU", *phases):
        table.add_column(name, justify="right" if name in phases else "left")
    for name in dict.fromkeys(name for parts in phases.values() for name in parts):
        table.add_row(name, *(f"{parts[name] / 1e9:,.3g}" if name in parts else "" for parts in phases.values()))
    totals = [sum(parts.values()) for parts in phases.values()]
    table.add_section()
    table.add_row("together", *(f"{total / 1e9:,.3g}" for total in totals))
    print(f"{heading}.\n")
    print_table(table)
    print(f"\n{LEFT_OUT}")
