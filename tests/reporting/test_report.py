"""The command, from logs to files."""

import math
import shlex
import subprocess
import sys

import pytest

from lightning_cgrpo.__main__ import main
from lightning_cgrpo.errors import UserError
from tests.reporting.conftest import fixed, standard

REWARDS = {"model.init_args.estimator": {"class_path": "lightning_cgrpo.ScalarizedRewards"}}


def report(*arguments):
    main(["report", *map(str, arguments)])


def drawn(folder, *names):
    for name in names:
        assert (folder / f"{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert (folder / f"{name}.png").stat().st_size > 5000
        assert (folder / f"{name}.pdf").read_bytes()[:5] == b"%PDF-"
    assert {path.stem for path in folder.glob("*.png")} == set(names)


def test_figures_tables_runs_and_a_page(make_run, tmp_path, capsys):
    for seed in (0, 1):
        tested = {"test/reward/mean": 0.5, "test_train/reward/mean": 0.625}
        make_run(f"runs/a/version_{seed}", seed=seed, evaluations=tested)
        make_run(f"runs/b/version_{seed}", REWARDS, seed=seed)
    out = tmp_path / "out"
    report(tmp_path / "runs", "--out", out)
    drawn(out, "curves", "distribution", "phase", "informative")
    for name in ("final", "control", "test"):
        for suffix in ("md", "csv", "tex"):
            assert (out / f"{name}.{suffix}").stat().st_size > 50
    assert len(list((out / "runs").glob("scalarized*_seed*.json"))) == 4
    page = (out / "report.md").read_text()
    assert "| ScalarizedRewards | 0, 1 | 100 |" in page and "![" not in page
    assert "![curves](curves.png)\n\nLearning curves" in (out / "figures.md").read_text()
    assert "| ScalarizedAdvantages, training prompts | 2 | 0.625 ± 0.000 |" in page
    assert "ScalarizedRewards" in capsys.readouterr().out
    # The saved runs make the same report.
    again = tmp_path / "again"
    report(out / "runs", "--out", again)
    drawn(again, "curves", "distribution", "phase", "informative")
    for name in ("final.md", "control.md", "test.md", "curves.png", "distribution.png", "phase.png", "informative.png"):
        same = (again / name).read_bytes() == (out / name).read_bytes()
        assert same or name.endswith("png"), name


def test_missing_tags_one_seed_and_an_unfinished_run(make_run, tmp_path, capsys):
    make_run("x/version_0", updates=30, scalars={"reward/mean": lambda u: -u, "rate/lava": lambda u: 0.0})
    report(tmp_path / "x", "--out", tmp_path / "out")
    drawn(tmp_path / "out", "curves", "distribution")
    shown = " ".join(capsys.readouterr().out.split())
    for text in ("30 of 100 updates", "rate/safe was not logged by any run", "groups/informative/* was not logged"):
        assert text in shown


@pytest.mark.slow
def test_an_enforced_rate_that_was_never_measured(make_run, tmp_path):
    scalars = {**standard(100), "rate/lava": lambda u: math.nan}
    make_run("x/version_0", scalars=scalars)
    report(tmp_path / "x", "--out", tmp_path / "out")
    drawn(tmp_path / "out", "curves", "distribution", "phase", "informative")
    assert "rate/lava was not logged by any run" in (tmp_path / "out" / "report.md").read_text()


def test_labels_do_not_break_the_page(make_run, tmp_path):
    report(f"a|b_c={make_run('x/version_0', updates=40)}", "--out", tmp_path / "out")
    page = (tmp_path / "out" / "report.md").read_text()
    assert "| a\\|b\\_c | 0 | 40 of 100 |" in page and "| a\\|b\\_c (40 of 100) | 1 |" in page


@pytest.mark.slow
def test_several_tasks_have_a_section_and_files_each(make_run, tmp_path, capsys):
    task, objective = "model.init_args.task", "model.init_args.objective"
    other = {
        task: {"class_path": "x.GSM8KTask"},
        objective: {"reward": "r", "constraints": {"format": {"at_most": 0.5}}},
    }
    scalars = {"reward/mean": lambda u: -u, "rate/format": lambda u: 0.25, "multiplier/format": lambda u: u}
    make_run("x/version_0", {task: {"class_path": "x.GridworldTask"}})
    make_run("x/version_1", other, scalars=scalars)
    out = tmp_path / "out"
    report(tmp_path / "x", "--out", out)
    figures = ("curves", "distribution", "phase")
    drawn(out, *(f"{name}_{figure}" for name in ("gridworld", "gsm8k") for figure in figures), "gridworld_informative")
    page = (out / "report.md").read_text()
    first, second = page.split("\n## GSM8K\n")
    assert "\n## Gridworld\n" in first and "### Final values" in first
    assert "rate lava" in first and "rate format" not in first
    assert "rate format" in second and "lava" not in second.replace("gridworld", "")
    assert "![gsm8k_curves](gsm8k_curves.png)\n\nLearning curves" in (out / "figures.md").read_text()
    assert "groups/informative/* was not logged by any run." in second and "was not logged" not in first
    assert "rate format" in (out / "gsm8k_final.md").read_text() and not (out / "final.md").exists()
    assert "\\label{tab:gsm8k_control}" in (out / "gsm8k_control.tex").read_text()
    assert {path.name for path in (out / "runs").iterdir()} == {
        "gridworld-scalarizedadvantages_seed0.json",
        "gsm8k-scalarizedadvantages_seed0.json",
    }
    shown = capsys.readouterr().out.splitlines()
    assert shown.index("Gridworld") < shown.index("GSM8K")


def test_the_screen_shows_whole_columns(make_run, tmp_path, capsys):
    """Marks beside the values, in a table that is wider than the screen."""
    names = [f"c{n}" for n in range(12)]
    objective = {"reward": "r", "constraints": {name: {"at_most": 0.1} for name in names}}
    scalars = {"reward/mean": lambda u: u, **{f"rate/{name}": lambda u: 0.5 for name in names}}
    make_run("x/version_0", {"model.init_args.objective": objective}, scalars=scalars)
    report(tmp_path / "x", "--out", tmp_path / "out")
    shown = capsys.readouterr().out
    assert shown.count("0.5000 !") == 12 and all(name in shown for name in names)


def test_labels_longer_than_their_axes_keep_columns_together(make_run, tmp_path):
    from lightning_cgrpo.reporting.collect import collect
    from lightning_cgrpo.reporting.figures.curves import curves

    widths = []
    for name in ("short", "a label that is a good deal longer than the axes under it, " * 2):
        [(_, figure)] = curves(collect([(name, make_run("x/version_0"))], 1 / 8).methods)
        figure.draw_without_rendering()
        widths.append([axes.get_position().width for axes in figure.axes])
        assert name.split()[0] in figure.texts[0].get_text()
    assert widths[0] == pytest.approx(widths[1], rel=0.02)


def test_a_run_without_updates_yet(make_run, tmp_path):
    make_run("x/version_0", updates=1)
    report(tmp_path / "x", "--out", tmp_path / "out")
    assert (tmp_path / "out" / "curves.png").is_file()


@pytest.mark.slow
def test_a_sweep_has_a_figure_and_its_methods_no_other(make_run, tmp_path):
    for n, weight in enumerate((0, 0.1, 0.2)):
        make_run(f"x/version_{n}", {"callbacks.multipliers": fixed(lava=weight)}, updates=3)
    report(tmp_path / "x", "--out", tmp_path / "swept")
    assert {path.stem for path in (tmp_path / "swept").glob("*.png")} == {"sweep"}
    make_run("x/version_3", updates=3)
    report(tmp_path / "x", "--out", tmp_path / "both")
    assert {"sweep", "curves", "phase"} < {path.stem for path in (tmp_path / "both").glob("*.png")}


@pytest.mark.slow
def test_many_methods_have_several_pages(make_run, tmp_path, monkeypatch):
    from lightning_cgrpo.reporting.figures.style import pages

    monkeypatch.setitem(pages.__globals__, "ROWS", 2)
    for n in range(3):
        make_run(f"x/version_{n}", {"model.init_args.group_size": n + 2}, updates=3)
    report(tmp_path / "x", "--out", tmp_path / "out")
    made = {path.stem for path in (tmp_path / "out").glob("*.png")}
    assert {"curves_1", "curves_2"} < made and "sweep" not in made


def test_errors_are_one_line(make_run, tmp_path):
    run = make_run("x/version_0", updates=2)
    (tmp_path / "file").write_text("")
    for arguments in ([tmp_path / "none", "--out", tmp_path], [run, "--out", tmp_path / "file"]):
        with pytest.raises(UserError) as caught:
            report(*arguments)
        assert "\n" not in str(caught.value)
    with pytest.raises(SystemExit):
        report(run, "--out", tmp_path / "out", "--last=2")


def test_starts_without_torch():
    code = (
        "import sys; from lightning_cgrpo.__main__ import main\n"
        "try: main(['report', 'missing', '--out', 'x'])\n"
        "except ValueError as error: print(error)\n"
        "import lightning_cgrpo.reporting.figures, lightning_cgrpo.reporting.logs\n"
        "print({'torch', 'lightning', 'transformers', 'tensorflow', 'matplotlib.pyplot'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "There is no 'missing' to read runs from.\nset()\n" and out.stderr == ""


@pytest.mark.slow
def test_trained_and_resumed_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = shlex.split(
        "-c configs/gridworld.yaml --data.prompts_per_update=2 --data.train_prompts=8 --data.val_prompts=4 "
        "--data.test_prompts=4 --model.group_size=4 --model.policy.hidden=[8] --trainer.log_every_n_steps=1 "
        "--model.sampler.environment.max_steps=10 --callbacks.initial_rates=null --callbacks.progress=null "
        "--trainer.enable_progress_bar=false --trainer.enable_model_summary=false --trainer.limit_val_batches=0 "
        "--trainer.logger.name=gridworld"
    )
    for seed in (1, 2):
        main(["fit", *small, "--trainer.max_steps=4", f"--seed_everything={seed}"])
    checkpoint = "runs/gridworld/version_1/checkpoints/last.ckpt"
    main(["fit", *small, "--trainer.max_steps=6", "--seed_everything=2", f"--ckpt_path={checkpoint}"])
    main(["test", *small, "--seed_everything=2", "--ckpt_path=last"])
    assert not (tmp_path / "runs/gridworld/version_3").exists(), "an evaluation belongs to the run that it evaluates"
    capsys.readouterr()
    report("runs", "--out", "out")
    page = (tmp_path / "out" / "report.md").read_text()
    assert "| ScalarizedAdvantages | 1, 2 | 4 to 6 |" in page and "rate lava ≤ 0.01" in page
    assert "## Test" in page
    assert "Several starts" not in page and "begins at" not in page and "Identical" not in page
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} >= {"curves", "phase", "informative"}
    files = list((tmp_path / "out" / "runs").iterdir())
    assert len(files) == 2 and all(path.stat().st_size < 10_000 for path in files)
