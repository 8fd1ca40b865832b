"""examples/several_budgets: every budget has a rate, a limit, a multiplier and a certificate."""

import csv
import json
import shlex
import shutil
from pathlib import Path

import pytest

from lightning_cgrpo.__main__ import main
from tests.forked import run_script

EXAMPLE = Path(__file__).parents[2] / "examples/several_budgets"
SMALL = shlex.split(
    "--trainer.max_steps=2 --trainer.log_every_n_steps=1 --trainer.val_check_interval=2 --trainer.limit_val_batches=1 "
    "--trainer.enable_progress_bar=false --trainer.enable_model_summary=false --callbacks.samples=null "
    "--callbacks.initial_rates=null --data.eval_prompts=30 --model.group_size=4 --model.sampler.max_new_tokens=30 "
    "--model.objective.constraints.long.over=1 "
    "--trainer.logger=lightning.pytorch.loggers.CSVLogger --trainer.logger.save_dir=runs --trainer.logger.name=budgets"
)


@pytest.mark.slow
def test_trains_and_certifies_each_budget(folder: Path) -> None:
    for file in EXAMPLE.glob("*.yaml"):
        shutil.copy(file, folder)
    base = EXAMPLE.parents[1] / "configs/gsm8k.yaml"
    config = folder / "several_budgets.yaml"
    config.write_text(config.read_text().replace("../../configs/gsm8k.yaml", str(base)))
    run_script(EXAMPLE / "prepare.py", folder / "data")
    row = json.loads((folder / "data/train_20.jsonl").read_text().splitlines()[0])
    assert row["budget"] == 20 and row["prompt"].endswith(" 20\n")

    main(["fit", "-c", "several_budgets.yaml", *SMALL])
    [file] = folder.glob("runs/budgets/**/metrics.csv")
    logged = {tag for line in csv.DictReader(file.open()) for tag, value in line.items() if value}
    for budget in (14, 20, 40):
        assert {f"val/rate/long/budget={budget}", f"multiplier/long/budget={budget}"} <= logged
        assert f"rate/right/budget={budget}" in logged
    with pytest.raises(SystemExit) as end:
        main(["certify", "-c", "several_budgets.yaml", *SMALL, "--ckpt_path=last", "--prompts=300"])
    assert end.value.code == 3  # refuted: nothing has been learned
    [file] = folder.glob("runs/budgets/**/certificates.json")
    [look] = json.loads(file.read_text()).values()
    assert {f"long/budget={budget}" for budget in (14, 20, 40)} <= look["constraints"].keys()
