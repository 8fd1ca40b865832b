"""Runs of different configurations have different folders; `last` finds the run of the same command."""

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import yaml

import lightning_cgrpo
from lightning_cgrpo import ConstrainedGRPO
from lightning_cgrpo.__main__ import main
from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.run.place import Place, _last_checkpoint
from tests.quiet import GRIDWORLD
from tests.refusals import refused

GRID = "-c configs/gridworld.yaml"
SMALL = [*GRIDWORLD, "--data.test_prompts=4", "--trainer.limit_val_batches=0", "--trainer.max_steps=2"]
NAMED = [*SMALL, "--trainer.logger.name=mine"]


def last_of(config):
    return _last_checkpoint(Place.of(config))


pytestmark = pytest.mark.usefixtures("folder")


def named(arguments):
    config, _ = read_arguments("fit", arguments.split())
    return config["trainer"]["logger"]["init_args"]["name"]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (GRID, "gridworld"),
        (f"{GRID} -c configs/ablations/gridworld/scalarized_rewards.yaml", "gridworld,scalarized_rewards"),
        (f"{GRID} --callbacks.multipliers.controller=PID", "gridworld,multipliers.controller=PID"),
        (f"{GRID} --model.estimator=lightning_cgrpo.GDPO --seed_everything=3", "gridworld,estimator=GDPO,seed=3"),
        (f"{GRID} --model.policy.hidden=[8,8]", "gridworld,policy.hidden=8-8"),
        ("-c configs/gsm8k.yaml --model.policy.model=models/mine", "gsm8k,policy.model=mine"),
        # What changes no learning is in no name: a run goes on under it.
        (f"{GRID} --trainer.max_steps=9 --threads=2 --data.test_prompts=7 --callbacks.pictures=null", "gridworld"),
        (
            "-c configs/gsm8k.yaml --data=PromptDataModule --data.path=a.jsonl --data.test_path=b.jsonl",
            "gsm8k,data=PromptDataModule,path=a.jsonl",
        ),
        # A name of the user's.
        (f"{GRID} --seed_everything=3 --trainer.logger.name=mine", "mine"),
        (f"{GRID} -c named.yaml --seed_everything=3", "mine,seed=3"),
    ],
)
def test_a_name_tells_what_was_changed(arguments, name):
    Path("named.yaml").write_text("trainer: {logger: {init_args: {name: mine}}}\nmodel: {group_size: 4}\n")
    assert named(arguments) == name


def test_long_names_differ_still():
    first, other = (
        named(f"{GRID} --model.task.cost=mean --model.policy.hidden={[8] * 50 + [n]}".replace(", ", ","))
        for n in (1, 2)
    )
    assert len(first) == len(other) <= 100 and first != other


def test_loggers_are_appended_and_each_has_its_name():
    config, _ = read_arguments("fit", [*GRID.split(), "--trainer.logger+=CSVLogger", "--seed_everything=2"])
    first, second = config["trainer"]["logger"]
    assert first["class_path"].endswith("TensorBoardLogger") and second["class_path"] == "CSVLogger"
    assert first["init_args"]["name"] == second["init_args"]["name"] == "gridworld,seed=2"


EASY = [f"--model.objective.constraints.{name}.at_most=0.9" for name in ("lava", "battery")]
VALIDATED = [*NAMED, "--trainer.max_steps=3", "--trainer.limit_val_batches=1.0", "--trainer.val_check_interval=1"]


@pytest.fixture(scope="module")
def trained(made_in_a_folder):
    """A folder with a run of two updates."""
    return made_in_a_folder(lambda: main(["fit", *NAMED]))


@pytest.fixture
def mine(folder, trained):
    """The same run, in the test's own folder."""
    shutil.copytree(trained / "runs", "runs")


def first_line(capsys):
    return capsys.readouterr().out.splitlines()[0]


def test_one_checkpoint_is_the_default_of_all_commands(capsys):
    """The best that validation ranked; the certificate is of the policy that is tested, exported and loaded."""
    main(["fit", *VALIDATED])
    (best,) = Path("runs/mine/version_0/checkpoints").glob("step=*.ckpt")
    for command in ("validate", "test", "predict"):
        capsys.readouterr()
        main([command, *VALIDATED])
        assert f"{best}, the best by val/merit." in first_line(capsys)
    with suppress(SystemExit):  # whatever is decided
        main(["certify", *VALIDATED, "--prompts=50", *EASY])
    assert f"Certifying {best}, the best by val/merit." in first_line(capsys)
    assert "language model" in refused(main, ["export", *VALIDATED, "--out=exported"])
    assert f"Exporting {best}, the best by val/merit." in first_line(capsys)
    loaded = lightning_cgrpo.load("runs/mine/version_0")
    assert f"Loading {best}, the best by val/merit." in first_line(capsys)
    saved = torch.load(best, weights_only=True)["state_dict"]
    assert all(torch.equal(value, saved[f"policy.{name}"]) for name, value in loaded.policy.state_dict().items())


def test_without_a_rank_the_default_is_the_newest_and_without_a_run_the_start(capsys):
    main(["test", *NAMED])
    assert "Testing the starting weights (drawn from the seed); no run of this" in first_line(capsys)
    main(["fit", *NAMED])
    Path("resumed.yaml").write_text("ckpt_path: earlier.ckpt\n")  # as the config.yaml of a resumed run has it
    for arguments in ([], ["-c", "resumed.yaml"]):
        capsys.readouterr()
        main(["test", *NAMED, *arguments])
        assert "runs/mine/version_0/checkpoints/last.ckpt, the newest, because no val" in first_line(capsys)
    assert "ranks no checkpoints, try --ckpt_path=last" in refused(main, ["test", *NAMED, "--ckpt_path=best"])


def test_a_seed_of_the_environment_is_in_the_name(monkeypatch):
    """So that the runs of an array of jobs are apart."""
    names = []
    for seed in "23":
        monkeypatch.setenv("SEED", seed)
        config, _ = read_arguments("fit", [*GRID.split(), "--seed_everything=${oc.env:SEED}"])
        names.append(config["trainer"]["logger"]["init_args"]["name"])
    assert names == ["gridworld,seed=2", "gridworld,seed=3"]


def test_auto_resumes_the_newest_checkpoint_or_starts_anew(capsys):
    """The same command, again and again, as a cluster repeats it."""
    said = []
    for steps in (2, 3, 3):
        capsys.readouterr()
        main(["fit", *NAMED, "--ckpt_path=auto", f"--trainer.max_steps={steps}"])
        printed = capsys.readouterr().out
        said.append(printed.splitlines()[0])
    assert said[0] == "No checkpoint of this run yet: a new run starts."
    newest = [f"runs/mine/version_{number}/checkpoints/last.ckpt, the newest (--ckpt_path=null" for number in (0, 1)]
    assert newest[0] in said[1] and newest[1] in said[2]
    assert "The run is finished, with 3 updates." in printed and "test -c runs/mine/version_1/config.yaml" in printed
    written = sorted(Path().glob("runs/mine/*/*/last*"))
    assert [torch.load(file, weights_only=True)["global_step"] for file in written] == [2, 3]


def test_runs_of_one_project_are_told_apart_by_their_names():
    """W&B keeps all runs of a project in one folder."""
    for version, name in enumerate(("gridworld", "gridworld,seed=1")):
        place = Path(f"runs/project/{version}")
        (place / "checkpoints").mkdir(parents=True)
        (place / "checkpoints" / "last.ckpt").touch()
        logger = {"class_path": "WandbLogger", "init_args": {"project": "project", "name": name}}
        (place / "config.yaml").write_text(yaml.safe_dump({"trainer": {"logger": logger}}))
    for seed, version in ((0, 0), (1, 1)):
        arguments = f"{GRID} --trainer.logger=WandbLogger --trainer.logger.project=project --seed_everything={seed}"
        config, _ = read_arguments("fit", arguments.split())
        assert last_of(config) == Path(f"runs/project/{version}/checkpoints/last.ckpt")


def test_a_runs_own_configuration_names_that_run(monkeypatch):
    """The card's commands name it, and must not take a later run of the same name; also from another folder."""
    config, _ = read_arguments("fit", GRID.split())
    for number, resumed in enumerate((None, 0, None, 1)):
        version = Path(f"runs/gridworld/version_{number}")
        (version / "checkpoints").mkdir(parents=True)
        (version / "checkpoints" / "last.ckpt").touch()
        resumed = None if resumed is None else f"runs/gridworld/version_{resumed}/checkpoints/last.ckpt"
        (version / "config.yaml").write_text(yaml.safe_dump({**config, "ckpt_path": resumed}))
    runs = Path("runs").resolve()

    def meant(*arguments):
        return last_of(read_arguments("certify", arguments)[0]).parent.parent.name

    assert meant(*GRID.split()) == "version_3"
    Path("elsewhere").mkdir()
    for folder in (".", "elsewhere"):
        monkeypatch.chdir(folder)
        # The first run was resumed, and resumed again; the run of version 2 began anew.
        for number, last in ((0, 3), (1, 3), (2, 2), (3, 3)):
            assert meant("-c", f"{runs}/gridworld/version_{number}/config.yaml") == f"version_{last}"
    # Version 2 resumed from another run, which has a version of the same number.
    resumed = "runs/other/version_0/checkpoints/last.ckpt"
    Path(f"{runs}/gridworld/version_2/config.yaml").write_text(yaml.safe_dump({**config, "ckpt_path": resumed}))
    assert meant("-c", f"{runs}/gridworld/version_0/config.yaml") == "version_3"
    Path(f"{runs}/gridworld/version_3/config.yaml").write_text(yaml.safe_dump({**config, "ckpt_path": resumed}))
    assert meant("-c", f"{runs}/gridworld/version_0/config.yaml") == "version_1"
    Path("checkpoints").mkdir()
    Path("checkpoints/last.ckpt").touch()
    Path("config.yaml").write_text(yaml.safe_dump({**config, "trainer": {**config["trainer"], "logger": False}}))
    monkeypatch.chdir("..")
    assert last_of(read_arguments("certify", ["-c", "elsewhere/config.yaml"])[0]).parts[0] == "elsewhere"
    version_2 = f"{runs}/gridworld/version_2"
    assert f"is a run's folder, try -c {version_2}/config.yaml" in refused(meant, "-c", version_2)
    # A change of the method is another run, whose name has no checkpoint.
    assert "but found none" in refused(meant, "-c", f"{version_2}/config.yaml", "--model.group_size=3")


@pytest.mark.usefixtures("mine")
def test_a_folder_is_no_checkpoint():
    for place in ("runs/mine", "runs/mine/version_0"):
        message = refused(main, ["test", *NAMED, f"--ckpt_path={place}"])
        assert f"'{place}' is a folder of runs, try --ckpt_path=runs/mine/version_0/checkpoints/last" in message


@pytest.mark.slow
@pytest.mark.usefixtures("mine")
def test_evaluations_write_beside_the_run(capsys):
    before = set(Path("runs/mine/version_0").iterdir())
    main(["test", *NAMED, "--ckpt_path=last"])
    main(["predict", *NAMED, "--ckpt_path=last"])
    assert {path.name for path in Path("runs/mine").iterdir()} == {"version_0"}
    added = {path.name.partition(".")[0] for path in set(Path("runs/mine/version_0").iterdir()) - before}
    assert added == {"events", "predictions"}
    config = yaml.safe_load(Path("runs/mine/version_0/config.yaml").read_text())
    assert config["ckpt_path"] is None, "an evaluation leaves the run's configuration alone"
    capsys.readouterr()
    main(["test", *NAMED, "--ckpt_path=null"])
    assert "Testing the starting weights (drawn from the seed); --ckpt_path=last" in capsys.readouterr().out
    assert {path.name for path in Path("runs/mine").iterdir()} == {"version_0", "start"}


@pytest.mark.parametrize("other", [False, True])
def test_a_failed_start_leaves_no_folder(other, folder):
    if other:
        (folder / "runs/other").mkdir(parents=True)
    refused(main, ["fit", *NAMED, "--model.optimizer.lr=-1"])
    assert {str(path) for path in Path().rglob("*")} == ({"runs", "runs/other"} if other else set())


@pytest.mark.usefixtures("mine")
def test_a_trained_module_is_loaded():
    path = "runs/mine/version_0/checkpoints/last.ckpt"
    module = lightning_cgrpo.load(path)
    assert isinstance(module, ConstrainedGRPO) and not module.training
    assert f"try lightning_cgrpo.load('{path}')" in refused(ConstrainedGRPO.load_from_checkpoint, path)
    assert "There is no checkpoint 'nowhere.ckpt'" in refused(lightning_cgrpo.load, "nowhere.ckpt")
    Path("alone").mkdir()
    shutil.copy(path, "alone")
    assert "from which to build the module, but there is none" in refused(lightning_cgrpo.load, "alone/last.ckpt")


def test_fixed_weights_resumed_with_multipliers_is_said():
    chosen = ["--callbacks.multipliers=FixedWeights", "--callbacks.multipliers.weights={lava: 0.1, battery: 0.1}"]
    main(["fit", *NAMED, *chosen])
    with pytest.warns(UserWarning, match="has no multipliers: the run resumes at update 2 with those that SoftmaxAdam"):
        main(["fit", *NAMED, "--ckpt_path=last", "--trainer.max_steps=3"])
