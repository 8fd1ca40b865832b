"""The studies of docs/studies.md are read, and its own problem is the tour's."""

import re
from pathlib import Path

from lightning_cgrpo.cli.study.study import configuration, read_study

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/studies.md").read_text(encoding="utf-8")
YAML = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def test_the_first_study_is_read(folder):
    (folder / "mine.yaml").write_text(YAML[0])
    study = read_study("mine.yaml")
    assert len({run.name for run in study.runs}) == 9 and study.after and study.at_once == 2
    assert all(configuration(run)["trainer"]["max_steps"] == 2000 for run in study.runs)


def test_a_user_s_own_problem(folder):
    (folder / "mine.yaml").write_text(YAML[1])
    (folder / "study.yaml").write_text(YAML[2])
    (functions,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    tour = (ROOT / "docs/tour.md").read_text(encoding="utf-8")
    assert functions.strip() in tour
    study = read_study("study.yaml")
    for run in study.runs:
        model = configuration(run)["model"]["init_args"]
        assert model["task"]["init_args"]["signals"].keys() == {"brief", "says_it"}
        assert model["policy"]["init_args"]["model"] == "models/tiny-qwen2"
    assert [run.name for run in study.runs[:2]] == ["softmax,seed=0", "pid,seed=0"] and len(study.runs) == 6
