"""The TRL example holds its rate, and docs/trl.md shows it as it is."""

import json
import re
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from examples import trl_constrained
from lightning_cgrpo.__main__ import main
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.policies.tiny.text import make_tiny_model

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "trl.md").read_text(encoding="utf-8")


@pytest.fixture
def model(tmp_path):
    return str(make_tiny_model(tmp_path / "model", hidden_size=16))


def after_the_first_third(trainer, key):
    """The rate swings around its threshold, so a shorter part would measure the swing."""
    values = [line[key] for line in trainer.state.log_history if key in line]
    part = values[len(values) // 3 :]
    return sum(part) / len(part)


def test_the_example_runs(model, tmp_path):
    trainer = trl_constrained.main(model, 2, output_dir=str(tmp_path / "out"), logging_first_step=True)
    assert trainer.state.log_history[0]["threshold/vowels"] == 0.8


@pytest.mark.slow
def test_the_rate_settles_at_its_threshold_while_answers_get_shorter(model, tmp_path):
    trainer = trl_constrained.main(model, output_dir=str(tmp_path / "out"))
    assert 0.77 < after_the_first_third(trainer, "rate/vowels") < 0.85
    assert trainer.state.log_history[0]["rewards/brief/mean"] < -0.3
    assert after_the_first_third(trainer, "rewards/brief/mean") > -0.2


def test_the_page_certifies_a_model_that_trl_saved(model, folder, monkeypatch, capsys):
    """Without changing its weights, and on none of the prompts that trained it."""
    (config,) = re.findall(r'```yaml title="trained.yaml"\n(.*?)```', PAGE, re.DOTALL)
    Path("trained.yaml").write_text(config)
    shutil.copytree(model, "trained")
    shutil.copy(trl_constrained.__file__, ".")
    monkeypatch.syspath_prepend(str(folder))
    trained = [{"prompt": f"Say {number}."} for number in range(8)]
    other = [{"prompt": f"Name {number}."} for number in range(40)]
    for name, rows in (("prompts", trained), ("test", [*trained, *other])):
        Path(f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    quiet = ["--trainer.enable_progress_bar=false", "--callbacks.initial_rates=null"]
    main(["fit", "-c", "trained.yaml", *quiet])
    with suppress(SystemExit):  # whatever is decided
        main(["certify", "-c", "trained.yaml"])
    assert "the 40 test prompts without 8 that trained" in " ".join(capsys.readouterr().out.split())
    state = torch.load("runs/trained/version_0/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    for name, weight in load_file("trained/model.safetensors").items():
        torch.testing.assert_close(state[f"policy.model.{name}"], weight.float(), rtol=0, atol=0)
    for wrong in ("trained", "null"):
        with pytest.raises(UserError, match=r"try .*`fit` with --trainer.max_steps=1 --model.optimizer.lr=0"):
            main(["certify", "-c", "trained.yaml", f"--ckpt_path={wrong}"])


def test_the_page_shows_the_five_lines_of_the_example():
    block = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    shown = [line.split("  #")[0] for line in block.splitlines() if line]
    assert len(shown) <= 5
    text = (ROOT / "examples" / "trl_constrained.py").read_text(encoding="utf-8")
    assert [line for line in shown if line not in text] == []
