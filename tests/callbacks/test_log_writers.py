"""TensorBoard, W&B and CSV get the same tags, pictures and texts, and `report` reads the same from CSV."""

import json
from pathlib import Path

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_cgrpo import (
    CausalLMPolicy,
    ConstrainedGRPO,
    Constraint,
    FunctionTask,
    GenerationSampler,
    Objective,
    ScalarizedAdvantages,
)
from lightning_cgrpo.callbacks import LagrangianCallback, Pictures, SampleAnswers
from lightning_cgrpo.datamodules import PromptDataModule
from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.run.logs import METRICS, Log
from lightning_cgrpo.tasks.task import Renderer
from tests.quiet import quiet_trainer

pytestmark = pytest.mark.slow
UPDATES = 3
STATES = []


def brief(completions, trainer_state, log_extra, log_metric):
    STATES.append((trainer_state.global_step, trainer_state.max_steps))
    log_extra("first", [text[:1] for text in completions])
    log_metric("longest", max(map(len, completions)))
    return [-float(len(text)) for text in completions]


def vowel(completions, **given):
    given["log_metric"]("calls", 1)
    return [float("a" in text) for text in completions]


class Lengths(Renderer):
    def render(self, prompts, rollouts, signals, row):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(1, 1))
        figure.subplots().plot(rollouts.lengths[row].cpu())
        return figure


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run with the three loggers, W&B's offline."""
    folder = tmp_path_factory.mktemp("logs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in (("WANDB_MODE", "offline"), ("WANDB_SILENT", "true"), ("WANDB_DIR", str(folder))):
            patch.setenv(name, value)
        torch.manual_seed(0)
        (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"Tom has {n}"}) + "\n" for n in range(8)))
        module = ConstrainedGRPO(
            policy=CausalLMPolicy(str(make_tiny_model(folder / "tiny", hidden_size=32))),
            sampler=GenerationSampler(6),
            task=FunctionTask({"brief": brief, "vowel": vowel}, kinds={"vowel": "indicator"}),
            objective=Objective("brief", {"vowel": Constraint(at_least=0.5)}),
            estimator=ScalarizedAdvantages("group"),
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
            group_size=4,
        )
        loggers = [TensorBoardLogger("tb", "x"), CSVLogger("csv", "x", flush_logs_every_n_steps=1), WandbLogger("x")]
        shown = [SampleAnswers(1), Pictures(Lengths(), 1)]
        limits = {"max_steps": UPDATES, "val_check_interval": UPDATES, "check_val_every_n_epoch": None}
        validated = {"limit_val_batches": None, "num_sanity_val_steps": 0}
        duals = LagrangianCallback(SoftmaxAdam())
        trainer = quiet_trainer(duals, *shown, logger=loggers, **limits, **validated)
        trainer.fit(module, PromptDataModule("prompts.jsonl", prompts_per_update=2, val_prompts=2, eval_prompts=2))
        run = loggers[2].experiment
        summary, media = dict(run.summary), Path(run.dir).resolve()
        run.finish()
        yield Path(loggers[0].log_dir).resolve(), Path(loggers[1].log_dir).resolve(), summary, media


def test_the_same_tags(runs):
    tb, csv, summary, _ = runs
    [events] = tb.glob("*tfevents*")
    log = EventAccumulator(str(events))
    log.Reload()
    tags = {kind: set(log.Tags()[kind]) for kind in ("scalars", "images")}
    header = set((csv / METRICS).read_text().splitlines()[0].split(",")) - {"step", "epoch"}
    own = {"trainer/global_step", "epoch"}
    scalars = tags["scalars"] - {"epoch"}
    assert header == scalars and {"functions/longest", "val/functions/longest", "rate/vowel"} <= scalars
    written = {tag for tag in summary if not tag.startswith("_")} - own
    assert written == scalars | tags["images"] | {"samples"}
    assert tags["images"] == {"episodes/0"} and "samples/text_summary" in log.Tags()["tensors"]


def test_pictures_and_texts(runs):
    _, csv, _, media = runs
    names = {str(path.relative_to(csv)) for path in csv.glob("*/**/*") if path.is_file()}
    assert names == {name for n in range(UPDATES) for name in (f"episodes/0/{n:05d}.png", f"samples/{n:05d}.md")}
    text = (csv / "samples" / "00000.md").read_text()
    assert "**Prompt**" in text and ", first " in text
    kinds = {path.suffix for path in media.rglob("media/**/*") if path.is_file()}
    assert kinds >= {".png", ".html"}


def test_report_reads_the_same(runs):
    theirs, ours = Log(), Log()
    theirs.add(runs[0])
    ours.add(runs[1])
    assert ours.scalars.keys() == theirs.scalars.keys() and "reward/mean" in ours.scalars
    for tag, values in theirs.scalars.items():
        assert ours.scalars[tag] == pytest.approx(values, rel=1e-6), tag


def test_functions_know_the_update(runs):
    assert [state for state in STATES if state[0] < UPDATES] == [(update, UPDATES) for update in range(UPDATES)]
