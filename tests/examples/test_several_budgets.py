"""examples/released_model, several budgets: each has prompts, a rate, a limit, a multiplier and a certificate."""

import csv
import json
import shlex
import shutil
from pathlib import Path

import pytest

from lightning_cgrpo.__main__ import main
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.run.looks import looks_in
from lightning_cgrpo.run.register import Register
from tests.forked import run_script
from tests.quiet import CSV, QUIET

EXAMPLE = Path(__file__).parents[2] / "examples/released_model"
NAMES = ("Ann", "Weng", "Tom", "Mia")
SMALL = shlex.split(
    "--model.policy.model=model --model.policy.lora=null --model.sampler.max_new_tokens=8 --model.group_size=4 "
    "--trainer.max_steps=2 --callbacks.samples=null --callbacks.initial_rates=null --data.prompts_per_update=30 "
    f"{QUIET} {' '.join(CSV)} --trainer.logger.name=budgets"
)


def say(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


@pytest.fixture
def example(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example's folder with prompts of 100 sentences, and a small model."""
    for file in EXAMPLE.glob("*.*"):
        shutil.copy(file, folder)
    monkeypatch.syspath_prepend(str(folder))
    (folder / "gsm8k").mkdir()
    for split, first in (("train", 0), ("test", 100)):
        questions = [f"{NAMES[n % 4]} has {n} pears. How many are left?" for n in range(first, first + 100)]
        lines = [json.dumps({"question": question}) for question in questions]
        (folder / f"gsm8k/{split}.jsonl").write_text("\n".join(lines))
    run_script(folder / "several_budgets.py", "gsm8k", "data/budgets")
    make_tiny_model(folder / "model", hidden_size=16)
    return folder


def test_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import several_budgets

    both = json.dumps({"name": "Ann", "number": 3})
    texts = ["3", "three", "4", '{"name": "Ann", "number": 4}', '{"name": "Ann"}', "true"]
    wanted = ["3", "3", "3", both, both, "1"]
    completions = [say(text) for text in texts]
    assert several_budgets.form(completions, wanted) == [1, 0, 1, 1, 0, 0]
    assert several_budgets.right(completions, wanted) == [1, 0, 0, 0.5, 0, 0]


@pytest.mark.slow
def test_trains_and_certifies_each_budget(example: Path) -> None:
    row = json.loads((example / "data/budgets/train_12.jsonl").read_text().splitlines()[1])
    assert (row["budget"], json.loads(row["wanted"])) == (12, {"name": "Weng"})
    main(["fit", "-c", "several_budgets.yaml", *SMALL])
    [file] = example.glob("runs/budgets/**/metrics.csv")
    logged = {tag for line in csv.DictReader(file.open()) for tag, value in line.items() if value}
    for budget in (5, 12, 20):
        assert {f"rate/long/budget={budget}", f"multiplier/long/budget={budget}"} <= logged
        assert f"mean/right/budget={budget}" in logged
    with pytest.raises(SystemExit) as end:
        main(["certify", "-c", "several_budgets.yaml", *SMALL, "--ckpt_path=last", "--prompts=300"])
    assert end.value.code == 3  # refuted: nothing has been learned
    [look] = looks_in(Register(example).entries())
    assert {f"long/budget={budget}" for budget in (5, 12, 20)} <= look["constraints"].keys()
