"""An evaluation measures every prompt that it promises, or fails."""

import pytest
from lightning.pytorch import Callback

from lightning_cgrpo.__main__ import main
from lightning_cgrpo.core.errors import UserError
from tests.run.test_place import NAMED


class Ends(Callback):
    """Raises StopIteration in the second batch, as `next` of an empty iterator does; Lightning's loop then ends."""

    def on_test_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
        if batch_idx == 1:
            next(iter(()))

    on_predict_batch_start = on_test_batch_start
    on_validation_batch_start = on_test_batch_start


@pytest.mark.parametrize("command", ["test", "predict", "validate", "certify", "fit"])
def test_an_evaluation_that_ends_early_fails(folder, monkeypatch, command):
    small = [*NAMED, "--trainer.limit_val_batches=1.0", "--trainer.val_check_interval=1", "--data.eval_prompts=2"]
    bounds = [f"--model.objective.constraints.{name}.at_most=0.9" for name in ("lava", "battery")]
    if command == "certify":
        main(["fit", *NAMED])
        bounds.append("--prompts=40")
        monkeypatch.setattr("lightning_cgrpo.cli.certify.look.KEPT", ("checkpoints", "ends"))
    arguments = [command, *small, *bounds, f"--callbacks.ends={__name__}.Ends"]
    with pytest.raises(UserError, match=r"Expected to measure \d+ prompts, but got 2"):
        main(arguments)
