"""One process of test_sharding.py: trains small models, and leaves what they compare.

    python sharding_worker.py FOLDER STRATEGY SCENARIO...

in the process group that the environment describes as torchrun does. FOLDER holds models and prompts, see `prepare`.
"""

import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LambdaCallback
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.tensor import DTensor

from examples.callbacks.reference_sync import ReferenceSync
from lightning_cgrpo import (
    CausalLMPolicy,
    ConstrainedGRPO,
    Constraint,
    FunctionTask,
    GenerationSampler,
    Objective,
    Optimization,
    SupervisedFineTuning,
    VisionLanguagePolicy,
)
from lightning_cgrpo.callbacks import Checkpoints, LagrangianCallback, SavePretrained
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.output import write_whole
from lightning_cgrpo.core.prompts.source import PromptSource
from lightning_cgrpo.core.randomness import Stream
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.datamodules import PromptDataModule
from lightning_cgrpo.datamodules.base import GroupDataModule
from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.policies import sharding
from lightning_cgrpo.policies.adapters import LoRA
from lightning_cgrpo.policies.sharding import FSDP2Strategy, unsharded, whole_tensor
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.samplers.vllm.server import VLLMServer
from tests.policies.tiny_vision import make_tiny_vision_model
from tests.quiet import quiet_trainer
from tests.samplers.fake_vllm import FakeServer

RANK, PROCESSES = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def prepare(folder: Path) -> Path:
    """Models and prompts for all processes."""
    make_tiny_model(folder / "model", hidden_size=32, layers=2)
    make_tiny_vision_model(folder / "vision", hidden_size=32)
    lines = [json.dumps({"prompt": f"Count to {number}.", "completion": "1, 2"[:number]}) for number in range(8)]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    return folder


class OnePicture(GroupDataModule, PromptSource):
    """Two prompts for an update, of four; the first alone has an image."""

    def source(self, split):
        return self

    def __len__(self):
        return 4

    def groups(self, index):
        return PromptGroups(index, {"prompt": [self._prompt(number) for number in index.tolist()]})

    def _prompt(self, number):
        if number:
            return [{"role": "user", "content": f"Drive {number}."}]
        picture = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        return [{"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": "Now?"}]}]


def even(completions, **columns):
    """Signal: an even number of characters."""
    return [float(len(text) % 2 == 0) for text in completions]


class Watch(Callback):
    """This process's share of the weights, and how often they are gathered in every rollout."""

    def __init__(self):
        self.multipliers, self.shares, self.gathers = [], {}, []

    def on_fit_start(self, trainer, pl_module):
        modules = {"policy": pl_module.policy, "reference": getattr(pl_module, "reference", None)}
        for name, module in modules.items():
            if isinstance(module, torch.nn.Module):
                local = [p.to_local() if isinstance(p, DTensor) else p for p in module.parameters()]
                total = sum(p.numel() for p in module.parameters())
                self.shares[name] = sum(p.numel() for p in local) / total
        sample = pl_module.sample

        def counted(*arguments):
            with patch.object(
                _fsdp_param_group, "foreach_all_gather", wraps=_fsdp_param_group.foreach_all_gather
            ) as it:
                rollouts = sample(*arguments)
            self.gathers.append(it.call_count)
            return rollouts

        pl_module.sample = counted

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if isinstance(pl_module, ConstrainedGRPO):
            self.multipliers.append(pl_module.weights.clone())


def grpo(policy, **options):
    settings = {"epochs": 2, "minibatch_size": 6, "micro_batch_size": 2, "kl_weight": 0.1, "max_grad_norm": 0.01}
    settings["exact_kl"] = True  # the reference makes a pass beside each of the policy's
    return ConstrainedGRPO(
        policy,
        GenerationSampler(max_new_tokens=8),
        FunctionTask({"even": even}, kinds={"even": "indicator"}, max_completion_tokens=8),
        Objective("length", {"even": Constraint(at_least=0.9)}),
        optimizer=adamw,
        optimization=Optimization(**settings | options),
        group_size=4,
        redraws=1,
    )


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def sft(folder, dtype="float64", optimizer=adamw):
    return SupervisedFineTuning(
        language(folder, dtype, gradient_checkpointing=True),
        GenerationSampler(max_new_tokens=8),
        FunctionTask({"even": even}, kinds={"even": "indicator"}, max_completion_tokens=8),
        Objective("length", {"even": Constraint(at_least=0.9, role="monitor")}),
        optimizer=optimizer,
        micro_batch_size=1,
        max_grad_norm=0.01,
    )


def language(folder, dtype="float64", **options):
    return CausalLMPolicy(str(folder / "model"), dtype=dtype, **options)


def prompts(folder):
    return PromptDataModule(str(folder / "prompts.jsonl"), prompts_per_update=3, val_prompts=2)


def fit(module, data, strategy, updates, *callbacks, precision="64-true", checkpoint=None, folder=None):
    watch = Watch()
    duals = [LagrangianCallback(SoftmaxAdam())] * isinstance(module, ConstrainedGRPO)
    parallel = {"strategy": strategy, "devices": PROCESSES, "use_distributed_sampler": False, "precision": precision}
    saves = any(isinstance(callback, Checkpoints) for callback in callbacks)
    options = {"max_steps": updates, "default_root_dir": folder, "enable_checkpointing": saves}
    trainer = quiet_trainer(*duals, watch, *callbacks, **parallel, **options)
    trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    left = {"policy": weights(module.policy), "shares": watch.shares, "gathers": watch.gathers}
    if watch.multipliers:
        left["multipliers"] = torch.stack(watch.multipliers)
    if isinstance(getattr(module, "reference", None), torch.nn.Module):
        left["reference"] = weights(module.reference)
    return left


def weights(module):
    """All of them as a vector, as they are kept: unsharded, FSDP2 may have rounded them."""
    return torch.cat([whole_tensor(parameter.detach()).flatten() for parameter in module.parameters()])


def whole_model(folder, strategy):
    """All weights, a reference that follows, activation checkpointing, an uneven share of three prompts."""
    return fit(grpo(language(folder, gradient_checkpointing=True)), prompts(folder), strategy, 3, ReferenceSync(2, 0.5))


def adapters(folder, strategy):
    """The reference is the policy with its adapters off."""
    policy, saved = language(folder, lora=LoRA(rank=4)), folder / f"adapters_{strategy}_{PROCESSES}"
    return fit(grpo(policy), prompts(folder), strategy, 2, SavePretrained(str(saved)))


def half_adapters(folder, strategy):
    """float32 ones on a bfloat16 model."""
    policy = language(folder, dtype="bfloat16", lora=LoRA(rank=4))
    left = fit(grpo(policy), prompts(folder), strategy, 1, precision="32-true")
    return left | {"dtypes": sorted({str(parameter.dtype) for parameter in policy.parameters()})}


def vision(folder, strategy):
    """Most passes have no image on one process or the other."""
    policy = VisionLanguagePolicy(str(folder / "vision"), dtype="float64", gradient_checkpointing=True)
    return fit(grpo(policy), OnePicture(prompts_per_update=2), strategy, 3)


def mixed(folder, strategy):
    """float32 shards, gathered as bfloat16. Supervised, since what is sampled would depend on the rounding."""
    module = sft(folder, "float32", lambda parameters: torch.optim.SGD(parameters, lr=1.0))
    module.policy.load()
    left = {"before": weights(module.policy)}
    left |= fit(module, prompts(folder), strategy, 1, precision="bf16-mixed")
    left["dtype"] = str(next(module.policy.parameters()).dtype)
    with unsharded(module.policy):
        left["dtype when whole"] = str(module.policy.network.get_input_embeddings().weight.dtype)
    return left


def mixed_vision(folder, strategy):
    policy = VisionLanguagePolicy(str(folder / "vision"))
    return fit(grpo(policy), OnePicture(prompts_per_update=2), strategy, 2, precision="bf16-mixed")


def served(folder, strategy):
    """Answers come from a server in the first process, which gets the weights of both."""
    address = folder / f"address_{strategy}_{PROCESSES}"
    if RANK == 0:
        fake = FakeServer(folder / "model")
        write_whole(address, fake.address)
    while not address.exists():
        time.sleep(0.01)
    module = grpo(language(folder, "float32"))
    module.sampler = GenerationSampler(max_new_tokens=8, engine=VLLMServer(address.read_text()))
    gaps = []
    twice = LambdaCallback(  # a rollout before each update's own, which then pushes nothing
        on_train_batch_start=lambda trainer, _, batch, number: module.sample(batch, 2, Stream.VALIDATION, 0),
        on_train_batch_end=lambda *_: gaps.append(module.latest_metrics["sampling/log_prob_gap"]),
    )
    left = fit(module, prompts(folder), strategy, 2, twice, precision="32-true")
    return left | {"gap": max(gaps), "pushes": fake.pushes() if RANK == 0 else None}


def supervised(folder, strategy):
    return fit(sft(folder), prompts(folder), strategy, 3)


def checkpoints(folder, strategy):
    """Four updates; and the last two of them again, from each kind of checkpoint. Written to FOLDER/PROCESSES/."""
    there = folder / str(PROCESSES)
    left = {}
    for kind in ("sharded", "consolidated"):
        # An object, for which Lightning refuses 64-true; the policy is float64 all the same.
        where = partial(FSDP2Strategy, kind == "sharded") if strategy == "fsdp2" else lambda: strategy
        files = Checkpoints(there / kind, "{step}", every_n_train_steps=2, save_top_k=-1, save_last=True)
        saved = SavePretrained(str(there / f"saved_{kind}"))
        how = {"precision": "32-true", "folder": there}
        left[kind] = fit(grpo(language(folder)), prompts(folder), where(), 4, files, saved, **how)
        how["checkpoint"] = there / kind / "step=2.ckpt"
        left[f"{kind} resumed"] = fit(grpo(language(folder)), prompts(folder), where(), 4, **how)
    return left


def resumed(folder, strategy):
    """The same from the checkpoints that others have left, two processes or a single one."""
    left = {}
    kinds = {"sharded": "2/sharded", "consolidated": "2/consolidated", "single": "1/consolidated"}
    for kind, where in kinds.items():
        if kind == "consolidated" or strategy == "fsdp2":
            how = {"precision": "32-true", "checkpoint": folder / where / "step=2.ckpt"}
            left[kind] = fit(grpo(language(folder)), prompts(folder), strategy, 4, **how)
    return left


class Timed(CausalLMPolicy):
    """Notes when its weights are read; without a directory it fails, on every process."""

    def load(self):
        begun = time.monotonic()
        time.sleep(0.3)
        super().load()
        self.times = (begun, time.monotonic())


def turns(folder, strategy):
    policy = Timed(str(folder / "model"), dtype="float64")
    fit(grpo(policy), prompts(folder), strategy, 1)
    try:
        fit(grpo(Timed(str(folder / "nothing"))), prompts(folder), strategy, 1)
    except UserError as error:
        return {"times": policy.times, "error": str(error)}


def turns_without_memory(folder, strategy):
    """Memory holds the whole weights of one process."""
    with patch.object(sharding, "fitting_processes", lambda most: 1):
        return turns(folder, strategy)


RUNS = (
    turns, turns_without_memory, whole_model, adapters, half_adapters, vision, mixed, mixed_vision, served, supervised,
    checkpoints, resumed,
)  # fmt: skip
SCENARIOS = {run.__name__: run for run in RUNS}

if __name__ == "__main__":
    torch.set_num_threads(1)
    target, chosen = Path(sys.argv[1]), sys.argv[2]
    for name in sys.argv[3:]:
        torch.save(SCENARIOS[name](target, chosen), target / f"{name}_{chosen}_{PROCESSES}_{RANK}.pt")
