"""The trained model in Hugging Face's format."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Callback, Trainer

from lightning_cgrpo.callbacks.model_card import write_card
from lightning_cgrpo.callbacks.run_manifest import RunManifest
from lightning_cgrpo.callbacks.run_summary import RunSummary
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.policies.adapters import ADAPTERS
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.model_files import fingerprint
from lightning_cgrpo.policies.sharding import full_weights
from lightning_cgrpo.run.lineage import write_lineage


class SavePretrained(Callback):
    """Writes the policy for transformers when training ends, over a former model.

    Args:
        directory: created if missing. Adapters and whole models need different directories.
    """

    changes_learning = False

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory).expanduser()

    def setup(self, trainer: Trainer, pl_module: RolloutModule, stage: str) -> None:
        """Raises:
        UserError: no language model; or the directory is a file, or the starting model's.
        """
        policy = pl_module.policy
        if not isinstance(policy, CausalLMPolicy):
            raise UserError(f"Expected a language model to save, but the policy is a {type(policy).__name__}.")
        if stage == "fit" and Path(policy.name).expanduser().resolve() == self.directory.resolve():
            raise UserError(
                "Expected directory to be another one than that of the model that training starts from, "
                f"'{policy.name}', but got the same, try another name."
            )
        if self.directory.exists() and not self.directory.is_dir():
            raise UserError(f"Expected directory to be a new or existing one, but '{self.directory}' is a file.")

    def on_fit_start(self, trainer: Trainer, pl_module: RolloutModule) -> None:
        """Raise a `UserError` if the directory has the other kind of model, by the loaded policy's kind."""
        has_adapters = hasattr(pl_module.policy.model, "merge_and_unload")
        other_kind = "config.json" if has_adapters else ADAPTERS
        if (self.directory / other_kind).exists():
            raise UserError(
                "Expected a directory without the other kind of model, because transformers would load adapters and "
                f"weights together, but '{self.directory}' has {other_kind}, try another directory."
            )

    def on_train_end(self, trainer: Trainer, pl_module: RolloutModule) -> None:
        policy = pl_module.policy
        assert isinstance(policy, CausalLMPolicy)
        weights = full_weights(policy)  # by all processes together
        if not trainer.is_global_zero:
            return
        policy.save_pretrained(self.directory, weights=weights)
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, RunManifest):
                write_lineage(self.directory, callback.manifest, fingerprint(self.directory))
            if isinstance(callback, RunSummary):
                callback.write(trainer, pl_module, callback.record.status)  # finished, if it came first
                method = type(pl_module).__name__
                reward = ", ".join(pl_module.objective.rewards)
                write_card(self.directory, policy.name, method, callback.record, trainer.global_step, reward)
        print(f"Wrote the model to {self.directory}; --model.policy.model={self.directory} trains from there.")
