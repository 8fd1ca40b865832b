"""A reference that follows the policy."""

from pathlib import Path
from types import SimpleNamespace

import torch

from examples.callbacks.reference_sync import ReferenceSync
from lightning_cgrpo.__main__ import main
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy, LoRA
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from tests.quiet import CSV, GRIDWORLD
from tests.refusals import refused

COMMON = [
    *GRIDWORLD, *CSV, "--trainer.limit_val_batches=0", "--callbacks.checkpoints.every_n_train_steps=1",
    "--callbacks.checkpoints.save_top_k=-1", "--callbacks.checkpoints.monitor=null",
    "--model.optimization.kl_weight=0.1",
]  # fmt: skip
SYNC = [
    "--callbacks.sync=examples.callbacks.reference_sync.ReferenceSync", "--callbacks.sync.every_n_updates=2",
    "--callbacks.sync.alpha=0.25",
]  # fmt: skip


def fit(name, *arguments):
    main(["fit", *COMMON, *SYNC, f"--trainer.logger.name={name}", "--trainer.max_steps=5", *arguments])


def states(name):
    """Policy and reference in the checkpoint after each update."""
    out = {}
    for path in sorted(Path(f"runs/{name}/version_0/checkpoints").glob("step=*.ckpt")):
        checkpoint = torch.load(path, weights_only=True)
        out[checkpoint["global_step"]] = tuple(
            torch.cat([v.flatten() for n, v in checkpoint["state_dict"].items() if n.startswith(part)])
            for part in ("policy.", "reference.")
        )
    return out


def test_every_other_update_it_moves_towards_the_policy_and_a_resumed_run_goes_on(folder):
    fit("whole")
    found = states("whole")
    assert list(found) == [1, 2, 3, 4, 5]
    start = found[1][1]
    for update, (policy, reference) in found.items():
        before = start if update == 1 else found[update - 1][1]
        expected = before if update % 2 else 0.25 * policy + 0.75 * before
        torch.testing.assert_close(reference, expected, rtol=1e-6, atol=1e-8)
        assert not torch.equal(policy, reference)
    assert not torch.equal(found[5][1], start)
    fit("resumed", "--ckpt_path=runs/whole/version_0/checkpoints/step=3.ckpt")
    for ours, theirs in zip(states("resumed")[5], found[5], strict=True):
        assert torch.equal(ours, theirs)


def test_adapters_are_refused(tmp_path):
    """The reference is the policy with its adapters off: there is nothing to move."""
    policy = CausalLMPolicy(str(make_tiny_model(tmp_path / "model")), lora=LoRA(rank=2))
    policy.load()
    module = SimpleNamespace(policy=policy, reference=policy.reference())
    message = refused(ReferenceSync().on_fit_start, None, module)
    assert "weights of its own" in message and "got the CausalLMPolicy with its adapters off, try lora" in message
