"""The command, from logs to files."""

import re

from torch.utils.tensorboard import SummaryWriter

from lightning_cgrpo.__main__ import main
from tests.refusals import refused

REWARDS = {"model.init_args.estimator": {"class_path": "lightning_cgrpo.ScalarizedRewards"}}


def report(*arguments):
    main(["report", *map(str, arguments)])


def drawn(folder, *names):
    for name in names:
        assert (folder / f"{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert (folder / f"{name}.png").stat().st_size > 5000
        assert (folder / f"{name}.pdf").read_bytes()[:5] == b"%PDF-"
    assert {path.stem for path in folder.glob("*.png")} == set(names)


def test_tables_and_figures(make_run, tmp_path):
    for seed in (0, 1):
        tests = {"test/reward/mean": 0.5, "test_train/reward/mean": 0.625}
        make_run(f"runs/a,seed={seed}/version_0", seed=seed, tests=tests)
        make_run(f"runs/b,seed={seed}/version_0", REWARDS, seed=seed)
    out = tmp_path / "out"
    report(tmp_path / "runs", "--out", out)
    drawn(out, "curves", "front", "timeline")
    page = (out / "report.md").read_text()
    assert "| b | 0, 1 | 100 |" in page and "| a, training prompts | 2 | 0.625 ± 0.000 |" in page
    assert page.count("\n## ") == 3 and "![" not in page
    html = (out / "report.html").read_text()
    assert html.count('srcset="data:image/png;base64,') == 3 and "Learning curves" in html
    assert "<td>a, training prompts</td><td>2</td><td>0.625 ±&nbsp;0.000</td>" in html
    assert not re.search(r'(src|srcset|href)="(?!data:)', html), "one file, which loads nothing"


def test_runs_that_went_wrong_are_told(make_run, tmp_path):
    error = "ValueError: <script>alert(1)</script> | a_b\nmore"
    make_run("x/version_0", updates=30, status="failed", error=error, faults={"goal": 2})
    report(tmp_path / "x", "--out", tmp_path / "out")
    page = (tmp_path / "out" / "report.md").read_text()
    assert "| x | 0 | 30 of 100 |" in page and "| x (30 of 100) | 1 |" in page
    assert "- x, seed 0: failed at 30 updates: ValueError: &lt;script>alert(1)&lt;/script> \\| a\\_b more." in page
    assert "2 logged updates had faults of goal" in page
    assert "<script" not in (tmp_path / "out" / "report.html").read_text()


def test_the_first_and_the_last_answers_stand_side_by_side(make_run, tmp_path):
    run = make_run("x/version_0", updates=40)
    with SummaryWriter(str(run)) as writer:
        for update in (0, 20, 30):
            writer.add_text("samples", f"**Prompt**\n\n    answer of <b>{update}</b>", update)
    report(run, "--out", tmp_path / "out")
    html = (tmp_path / "out" / "report.html").read_text()
    first, last = (html.index(f"answer of &lt;b&gt;{update}") for update in (0, 30))
    assert first < last and "&gt;20&lt;" not in html and html.count("<b>Prompt</b>") == 2


def test_errors_are_one_line(make_run, tmp_path):
    run = make_run("x/version_0", updates=2)
    (tmp_path / "file").write_text("")
    for arguments in ([tmp_path / "none", "--out", tmp_path], [run, "--out", tmp_path / "file"]):
        refused(report, *arguments)
