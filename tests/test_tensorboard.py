"""What a run writes for TensorBoard: the tags are an interface, and the numbers are those of the rollouts."""

import re
import shlex
import sys

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from lightning_cgrpo.__main__ import main
from tests.quiet import QUIET

ARGUMENTS = (
    "fit -c configs/gridworld.yaml --trainer.max_steps=2 --trainer.log_every_n_steps=1 "
    "--trainer.limit_val_batches=0 --data.prompts_per_update=6 --data.size=5 --data.lava=6 "
    "--model.sampler.environment.max_steps=30 --model.optimization.minibatch_size=500 "
    "--model.optimization.kl_weight=0.1 --model.objective.look=null --callbacks.initial_rates.batches=2 "
    f"--callbacks.progress=null {QUIET}"
)
CONSTRAINTS = {"lava", "battery"}
TAGS = {
    "reward/mean",
    *(f"{family}/{name}" for family in ("rate", "threshold") for name in CONSTRAINTS),
    *(
        f"{family}/{name}"
        for family in ("multiplier", "effective_weight", "groups/informative")
        for name in {"reward", *CONSTRAINTS}
    ),
    *(f"policy/{name}" for name in ("loss", "entropy", "clip_fraction", "grad_norm", "kl", "learning_rate")),
    *(f"time/{name}" for name in ("rollout", "score", "optimize")),
    *(f"throughput/{name}_per_second" for name in ("answers", "steps")),
    "rollout/length",
}
INITIAL = {
    "initial/reward/mean",
    "initial/rollout/length",
    "initial/some_answer_meets_all",
    *(f"initial/{family}/{name}" for family in ("rate", "best") for name in CONSTRAINTS),
}


KEEP = """\
from lightning.pytorch import Callback

class Keep(Callback):
    updates = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        Keep.updates.append((outputs, pl_module.weights.clone()))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two updates: the folder, and what a callback of the user's own in that folder kept."""
    folder = tmp_path_factory.mktemp("tensorboard")
    (folder / "keep_updates.py").write_text(KEEP)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        main([*shlex.split(ARGUMENTS), "--callbacks.keep=keep_updates.Keep"])
    return folder, sys.modules.pop("keep_updates").Keep


@pytest.fixture(scope="module")
def events(run):
    accumulator = EventAccumulator(str(next((run[0] / "runs").glob("*/version_0"))), size_guidance={"images": 0})
    accumulator.Reload()
    return accumulator


def test_scalars(events):
    """Exactly these, each in both updates; the initial ones once."""
    found = set(events.Tags()["scalars"])
    assert found - {"hp_metric", "epoch"} == TAGS | INITIAL
    for tag in TAGS:
        assert [event.step for event in events.Scalars(tag)] == [0, 1], tag
    for tag in INITIAL:
        assert [event.step for event in events.Scalars(tag)] == [0], tag


@pytest.mark.parametrize("update", [0, 1])
def test_numbers_are_those_of_the_update(run, events, update):
    """Recomputed from the rollouts of the update, with the multipliers from before its dual step."""
    outputs, _ = run[1].updates[update]
    rollouts = outputs["rollouts"]
    steps = rollouts.mask.sum().item()
    goal = rollouts.info["goal"].any(-1).double()
    costs = {name: rollouts.info[name].sum(-1).double() for name in CONSTRAINTS}
    weights = torch.full((3,), 1 / 3) if update == 0 else run[1].updates[0][1]

    def logged(tag):
        return events.Scalars(tag)[update].value

    assert logged("reward/mean") == pytest.approx(goal.mean().item(), rel=1e-6)
    assert logged("rollout/length") == pytest.approx(steps / goal.numel(), rel=1e-6)
    for name, penalties in costs.items():
        assert logged(f"rate/{name}") == pytest.approx(penalties.sum().item() / steps, rel=1e-6)
        assert logged(f"threshold/{name}") == pytest.approx(0.01)
    for row, (name, values) in enumerate({"reward": goal, "lava": costs["lava"], "battery": costs["battery"]}.items()):
        varies = (values != values[:, :1]).any(-1)
        assert logged(f"groups/informative/{name}") == pytest.approx(varies.double().mean().item())
        assert logged(f"multiplier/{name}") == pytest.approx(weights[row].item(), rel=1e-6)
        # Under scalarized advantages, a weight is what it says.
        assert logged(f"effective_weight/{name}") == pytest.approx(weights[row].item(), rel=1e-5)
    assert 0 < logged("policy/entropy") <= torch.tensor(5.0).log().item() + 1e-4
    assert logged("policy/grad_norm") > 0 and logged("policy/learning_rate") == pytest.approx(5e-4)
    assert logged("policy/kl") >= 0 and 0 <= logged("policy/clip_fraction") < 0.5
    seconds = sum(logged(f"time/{name}") for name in ("rollout", "score", "optimize"))
    assert logged("throughput/steps_per_second") == pytest.approx(steps / seconds, rel=1e-4)
    assert logged("throughput/answers_per_second") == pytest.approx(goal.numel() / seconds, rel=1e-4)


def test_custom_scalars_show_each_rate_with_its_threshold(events):
    assert "custom_scalars__config__" in events.Tags()["tensors"]
    [event] = events.Tensors("custom_scalars__config__")
    layout = Layout.FromString(event.tensor_proto.string_val[0])
    [category] = layout.category
    charts = {chart.title: list(chart.multiline.tag) for chart in category.chart}
    assert charts["rate of lava"] == ["^(val/)?rate/lava$", "^threshold/lava$"]
    assert {"reward", "rate of battery", "multipliers", "effective weights", "informative groups"} < set(charts)
    # Every chart shows something that is written.
    for title, patterns in charts.items():
        assert all(any(re.search(pattern, tag) for tag in TAGS) for pattern in patterns), title


def test_the_settings_are_hyperparameters(events):
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    settings = HParamsPluginData.FromString(content).session_start_info.hparams
    assert settings["model.optimizer.lr"].number_value == pytest.approx(5e-4)
    assert settings["data.prompts_per_update"].number_value == 6 and "seed" in settings
    experiment = HParamsPluginData.FromString(events.SummaryMetadata("_hparams_/experiment").plugin_data.content)
    compared = {info.name.tag for info in experiment.experiment.metric_infos}
    assert {"val/merit", "reward/mean", "val/rate/lava", "rate/battery"} <= compared


def test_a_picture_of_the_episodes(events):
    assert events.Tags()["images"] == ["episodes/0"]
    [image] = events.Images("episodes/0")
    assert image.step == 0 and image.width > 100 and image.height > 100
    assert image.encoded_image_string[:8] == b"\x89PNG\r\n\x1a\n"
