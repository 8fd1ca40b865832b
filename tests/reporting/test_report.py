"""The command, from logs to files."""

import pytest

from lightning_cgrpo.__main__ import main
from lightning_cgrpo.errors import UserError
from tests.reporting.conftest import fixed

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
    drawn(out, "curves", "front")
    page = (out / "report.md").read_text()
    assert "| b | 0, 1 | 100 |" in page and "| a, training prompts | 2 | 0.625 ± 0.000 |" in page
    assert page.count("\n## ") == 3 and "beside this page: `front.png`, `curves.png`." in page


def test_runs_that_went_wrong_are_told(make_run, tmp_path):
    error = "ValueError: <script>alert(1)</script> | a_b\nmore"
    make_run("x/version_0", updates=30, status="failed", error=error, collapsed=12.0, faults={"goal": 2})
    report(tmp_path / "x", "--out", tmp_path / "out")
    page = (tmp_path / "out" / "report.md").read_text()
    assert "| x | 0 | 30 of 100 |" in page and "| x (30 of 100) | 1 |" in page
    assert "- x, seed 0: failed at 30 updates: ValueError: &lt;script>alert(1)&lt;/script> \\| a\\_b more." in page
    assert "collapsed from update 12 on" in page and "2 logged updates had faults of goal" in page


@pytest.mark.slow
def test_a_sweep_has_a_figure_and_its_methods_no_other(make_run, tmp_path):
    for n, weight in enumerate((0, 0.1, 0.2)):
        make_run(f"x/version_{n}", {"callbacks.multipliers": fixed(lava=weight)}, updates=3)
    report(tmp_path / "x", "--out", tmp_path / "swept")
    drawn(tmp_path / "swept", "sweep")
    make_run("x/version_3", updates=3)
    report(tmp_path / "x", "--out", tmp_path / "both")
    drawn(tmp_path / "both", "sweep", "curves")


def test_errors_are_one_line(make_run, tmp_path):
    run = make_run("x/version_0", updates=2)
    (tmp_path / "file").write_text("")
    for arguments in ([tmp_path / "none", "--out", tmp_path], [run, "--out", tmp_path / "file"]):
        with pytest.raises(UserError) as caught:
            report(*arguments)
        assert "\n" not in str(caught.value)
