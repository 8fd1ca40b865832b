"""The command certify: its verdicts by hand, one look for each policy, and prompts that trained nobody."""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from lightning_cgrpo import load
from lightning_cgrpo.__main__ import main
from lightning_cgrpo.cli.certify import command
from lightning_cgrpo.cli.certify.policy_identity import identity
from lightning_cgrpo.cli.loading import file_stamps, hold_checkpoint
from lightning_cgrpo.core.prompts.fingerprints import identities
from lightning_cgrpo.core.randomness import Stream
from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.objective.verdicts import ratio
from lightning_cgrpo.run.looks import error_share, looks_in
from lightning_cgrpo.run.register import Register
from lightning_cgrpo.tasks.gridworld.task import GridworldTask
from tests.quiet import GRIDWORLD
from tests.refusals import refused

SMALL = [
    *GRIDWORLD,
    *shlex.split(
        "--data.test_prompts=5 --data.eval_prompts=40 --model.eval_group_size=2 --trainer.logger.name=gridworld "
        "--trainer.max_steps=2 --trainer.val_check_interval=1 --model.objective.look=null"
    ),
]
BOUNDS = "--model.objective.constraints.lava.at_most={lava} --model.objective.constraints.battery.at_most=0.99"
FOLDER = Path("runs/gridworld/version_0/checkpoints")
REGISTER = Path("looks.jsonl")


@pytest.fixture(scope="module")
def home(made_in_a_folder):
    """A run of two updates, whose project moved to another folder, as to another machine."""
    folder = made_in_a_folder(lambda: main(["fit", *SMALL]))
    return folder.rename(folder.with_name(f"{folder.name} moved"))


@pytest.fixture(autouse=True)
def copy(home, tmp_path, monkeypatch):
    shutil.copytree(home, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")


def certify(arguments="", lava=0.9):
    """The exit status."""
    try:
        main(["certify", *SMALL, *shlex.split(BOUNDS.format(lava=lava)), *shlex.split(arguments)])
    except SystemExit as end:
        return end.code
    return 0


def looks():
    return looks_in(Register(Path()).entries())


def printed(capsys):
    """In one line, however narrow the screen is."""
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("lava", "status", "decision"), [(0.9, 0, "certified"), (0.06, 3, "refuted"), (0.2, 4, "undecided")]
)
def test_the_verdict_and_the_status_follow_from_answers_to_new_prompts(lava, status, decision, capsys):
    """The same answers sampled here, of layouts 5 to 104, decide by the functions that simulations test."""
    violations, opportunities = sampled()
    if lava == 0.2:  # a threshold at the policy's own rate, which is what can't be decided
        lava = round(float(violations.sum() / opportunities.sum()), 3)
    assert certify(f"--ckpt_path={FOLDER}/last.ckpt --prompts=100", lava) == status
    (look,) = looks()
    assert look["decision"] == look["constraints"]["lava"]["decision"] == decision
    found = look["constraints"]["lava"]
    assert found["rate"] == pytest.approx(violations.sum() / opportunities.sum())
    # Holm: the battery, which never runs down, is certified first, and refutes nothing. The threshold is the bound of a
    # refuted constraint beside another; if all are certified, Bonferroni's.
    expected = {0: ratio.upper_bound(violations, opportunities, 20, 0.02), 3: lava}.get(
        status, ratio.upper_bound(violations, opportunities, 20, 0.04)
    )
    assert found["low" if status == 3 else "high"] == pytest.approx(expected)
    out = printed(capsys)
    for words in (decision.upper(), "100 new prompts, one answer to each", "looks along a lineage share its error"):
        assert words in out
    assert not Path("lightning_logs").exists(), "a look logs nothing"


def test_the_policys_own_signals_need_a_range(capsys):
    """Of five actions, the entropy is at most log 5 = 1.61 nats."""
    signals = {"lively": "range: [0, 1.7]", "alive": ""}
    declared = "{{signal: entropy, mean_at_least: 0.001, {}}}"
    more = " ".join(f"--model.objective.constraints.{n}='{declared.format(r)}'" for n, r in signals.items())
    assert certify(f"--ckpt_path={FOLDER}/last.ckpt --prompts=100 {more}") == 0
    constraints = looks()[0]["constraints"]
    assert [*constraints] == ["lava", "battery", "lively"] and constraints["lively"]["decision"] == "certified"
    assert 0.001 < constraints["lively"]["low"] < constraints["lively"]["rate"] < 1.7
    assert "Not certified: alive (no range), the reward." in printed(capsys)


def sampled():
    module = load(FOLDER / "last.ckpt")
    data = GridworldDataModule(test_prompts=5, seed=0)
    prompts = data.source("test").groups(torch.arange(5, 105))
    rollouts = module.sample(prompts, 1, Stream.TEST, 3)
    violations, opportunities = module.task.score(prompts, rollouts)["lava"].counts()
    # The look bets on the prompts in the order of their identities.
    order = identities(prompts, rollouts).argsort()
    return violations.double().sum(-1)[order].numpy(), opportunities.double().sum(-1)[order].numpy()


def test_the_same_question_gives_the_recorded_verdict_and_samples_nothing(monkeypatch, capsys):
    assert certify("--ckpt_path=best --prompts=100", 0.06) == 3
    before = REGISTER.read_bytes()
    # The same weights under another name.
    (best,) = FOLDER.glob("step=*.ckpt")
    shutil.copy(best, FOLDER / "other.ckpt")
    monkeypatch.setattr("lightning_cgrpo.cli.certify.look.sample_of", lambda *_: pytest.fail("a second look"))
    for arguments in ("", "--confidence=0.95", f"--ckpt_path={FOLDER}/other.ckpt"):
        capsys.readouterr()
        assert certify(f"--prompts=100 {arguments}", 0.06) == 3
        out = printed(capsys)
        assert "Nothing was sampled, because the look was taken on 20" in out and "REFUTED" in out
    assert REGISTER.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    ["--prompts=301", "--prompts=300 --confidence=0.9", "--prompts=300 --trainer.precision=bf16-mixed"],
)
def test_another_question_is_a_further_look_at_new_prompts_with_less_of_the_error(change, capsys):
    """Also the defaults of a question that another call has named."""
    assert certify("--prompts=100", 0.06) == 3
    assert certify(change, 0.06) in (3, 4)
    first, second = looks()
    assert (first["look"], second["look"]) == (1, 2)
    assert first["error"] == pytest.approx(0.05 * 0.8)
    assert second["error"] == pytest.approx((0.1 if "0.9" in change else 0.05) * 0.1)
    assert (first["shown"]["first"], first["shown"]["until"]) == (5, 105)
    assert (second["shown"]["first"], second["shown"]["until"]) == (105, 105 + second["prompts"])
    assert "look 2 may be wrong with probability" in printed(capsys)


@pytest.mark.parametrize("place", ["runs", "elsewhere/mine"])
def test_looks_at_all_checkpoints_of_a_run_and_of_what_continues_it_count(place):
    assert certify(f"--prompts=100 --ckpt_path={FOLDER}/last.ckpt", 0.06) == 3
    further = ["--trainer.max_steps=3", f"--trainer.logger.save_dir={place}"]
    main(["fit", *SMALL, f"--ckpt_path={FOLDER}/last.ckpt", *further])
    (later,) = {*Path().glob(f"{place}/gridworld/version_*/checkpoints")} - {FOLDER}
    assert certify(f"--prompts=300 --ckpt_path={later}/last.ckpt", 0.06) in (3, 4)
    assert [look["look"] for look in looks()] == [1, 2] and looks()[1]["shown"]["first"] == 105


def test_a_copy_elsewhere_is_looked_at_as_the_runs_own(tmp_path, monkeypatch):
    """By the project that its manifest names."""
    main(["fit", *SMALL, f"--ckpt_path={FOLDER}/last.ckpt", "--trainer.max_steps=3"])
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(FOLDER.parents[1] / "version_1/checkpoints/last.ckpt", tmp_path / "elsewhere/mine.ckpt")
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path / "elsewhere")
        assert certify("--prompts=100 --ckpt_path=mine.ckpt", 0.06) in (3, 4)
    certify(f"--prompts=300 --ckpt_path={FOLDER}/last.ckpt", 0.06)
    assert [look["look"] for look in looks()] == [1, 2]


def test_the_shares_of_all_looks_are_the_whole_error():
    assert sum(error_share(number) for number in range(1, 10_001)) == pytest.approx(1, abs=1e-4)


def test_another_policy_and_other_libraries_have_looks_of_their_own(monkeypatch):
    (best,) = FOLDER.glob("step=*.ckpt")
    saved = torch.load(best, weights_only=True)
    next(iter(saved["state_dict"].values()))[0] += 1
    torch.save(saved, FOLDER / "other.ckpt")
    certify("--prompts=100", 0.9)
    certify(f"--prompts=100 --ckpt_path={FOLDER}/other.ckpt", 0.9)
    assert len(looks()) == 2
    monkeypatch.setattr("lightning_cgrpo.callbacks.run_manifest.version", lambda name: "0.0")
    certify("--prompts=100", 0.9)
    assert len(looks()) == 3


def test_identity_is_that_of_weights_and_decoding():
    weights = {"a": torch.zeros(2), "b": torch.ones(3, dtype=torch.bfloat16)}
    same = {"b": weights["b"].clone(), "a": weights["a"].clone()}
    assert identity(weights, {"t": 1}) == identity(same, {"t": 1})
    others = [weights | {"a": torch.ones(2)}, weights | {"a": torch.zeros(1, 2)}, {"c": same["a"], "b": same["b"]}]
    assert len({identity(w, {"t": 1}) for w in (weights, *others)} | {identity(weights, {"t": 2})}) == 5


def test_what_can_decide_nothing_is_no_look():
    assert "at least 321 prompts" in refused(certify, "--prompts=100", 0.01)
    assert "allows no violation at all" in refused(certify, "--prompts=100", 0.0)
    assert "at least 1" in refused(certify, "--prompts=0") and "--confidence" in refused(certify, "--confidence=95")
    assert "try --prompts" in refused(certify, "", 0.01), "five test prompts are the default"
    assert not REGISTER.exists()


def test_other_data_than_the_runs_own_is_refused():
    message = refused(certify, "--prompts=100 --data.lava=3")
    assert message.startswith("Expected the data of the checkpoint's run") and "data.lava: 20 -> 3" in message
    assert certify("--prompts=100 --data.eval_prompts=7 --data.test_prompts=9 --seed_everything=1") == 0


def test_an_error_names_the_checkpoint_as_the_user_does():
    saved = torch.load(FOLDER / "last.ckpt", weights_only=True)
    torch.save({**saved, "state_dict": 5}, FOLDER / "last.ckpt")
    message = refused(certify, f"--prompts=100 --ckpt_path={FOLDER}/last.ckpt")
    assert message.startswith(f"Expected '{FOLDER}/last.ckpt' to hold a run's state, but its state_dict is 5")


def test_a_damaged_register_is_no_second_chance_and_a_folder_in_its_place_is_refused_before_sampling(monkeypatch):
    certify("--prompts=100")
    REGISTER.write_text("{\n" + REGISTER.read_text())
    assert "is damaged" in refused(certify, "--prompts=100")
    monkeypatch.setattr("lightning_cgrpo.cli.certify.look.sample_of", None)
    REGISTER.unlink()
    REGISTER.mkdir()
    assert "is damaged" in refused(certify, f"--prompts=100 --ckpt_path={FOLDER}/last.ckpt")


def test_an_edited_line_and_a_removed_line_are_told(capsys):
    assert certify("--prompts=100", 0.06) == 3
    began, ended = REGISTER.read_text().splitlines()
    REGISTER.write_text(f"{began}\n{ended.replace('refuted', 'certified')}\n")
    assert certify("--prompts=100", 0.06) == 0
    assert "Edited by hand, or after a removed line: line 2." in printed(capsys)
    REGISTER.write_text(f"{ended}\n")
    assert certify("--prompts=300", 0.06) in (3, 4)
    assert "Edited by hand, or after a removed line: line 1." in printed(capsys)


def test_a_look_that_raises_is_spent(monkeypatch, capsys):
    """Whatever the outcome was, and a half-written line began no look."""
    score = GridworldTask.score

    def faulty(*arguments):
        signals = score(*arguments)
        signals["lava"].value[0] = float("nan")
        return signals

    def raises(*arguments):
        raise ValueError("mine")

    with monkeypatch.context() as patch:
        patch.setattr(GridworldTask, "score", raises)
        with pytest.raises(ValueError, match="mine"):
            certify("--prompts=300", 0.06)
        patch.setattr(GridworldTask, "score", faulty)
        assert "the look is spent" in refused(certify, "--prompts=300", 0.06)
    with REGISTER.open("a") as file:
        file.write('{"event": "beg')
    certify("--prompts=400", 0.06)
    assert [look["look"] for look in looks()] == [1, 2, 3]
    assert [look["shown"]["first"] for look in looks()] == [5, 305, 605]
    assert "2 looks began without an end, and counted." in printed(capsys)


RUN = """
import os, sys
from pathlib import Path
from lightning_cgrpo.__main__ import run

folder, sys.argv[1:], status = Path(sys.argv[1]), sys.argv[2:], 0
try:
    run()
except SystemExit as end:
    status = end.code or 0
(folder / f"status_{os.environ['RANK']}").write_text(str(status))
"""


@pytest.mark.slow
def test_several_processes_rank_and_certify_as_one_does(home, launch, tmp_path):
    """Two processes train, rank and certify; also the exit status is that of one process."""
    bounds = shlex.split(BOUNDS.format(lava=0.06))
    certifying = ["certify", *SMALL, *bounds, "--prompts=101"]
    (tmp_path / "run.py").write_text(RUN)

    def together_run(*command):
        launch(2, tmp_path / "run.py", tmp_path, *command, "--trainer.devices=2", "--trainer.strategy=ddp")
        return [int((tmp_path / f"status_{rank}").read_text()) for rank in range(2)]

    with pytest.raises(SystemExit) as end:
        main(certifying)
    assert end.value.code == 3
    alone = looks()[0]
    REGISTER.unlink()
    assert together_run(*certifying)[0] == 3
    assert sum((tmp_path / f"output_{rank}.txt").read_text().count("REFUTED") for rank in range(2)) == 1
    together = looks()[0]
    assert together["question"] == alone["question"] and together["source"] == alone["source"]
    for name, values in alone["constraints"].items():
        assert together["constraints"][name] == pytest.approx(values)
    shutil.rmtree("runs")
    assert together_run("fit", *SMALL) == [0, 0]
    (expected,), (best,) = ((folder / FOLDER).glob("step=*.ckpt") for folder in (home, Path()))
    assert best.name == expected.name


def test_a_lost_reward_stands_beside_the_verdict(capsys):
    """The line of the run's card, also beside a recorded verdict."""
    file = FOLDER.parent / "summary.json"
    summary = json.loads(file.read_text())
    summary["measured"]["before"] = {"reward": {"value": 9.0, "error": 0.1}, "constraints": {}}
    file.write_text(json.dumps(summary))
    for _ in range(2):
        assert certify(f"--ckpt_path={FOLDER}/last.ckpt --prompts=100") == 0
        assert "The reward fell from 9 to " in printed(capsys)


def test_a_second_name_is_left_by_no_command(monkeypatch):
    """Neither by a killed command, nor in the place of another file; a program that writes into the file is told."""
    checkpoint = FOLDER / "last.ckpt"
    ended = subprocess.Popen(["true"])
    ended.wait()
    with hold_checkpoint(checkpoint) as name:
        left = name.with_name(name.name.replace(str(os.getpid()), str(ended.pid)))
        left.touch()
        with hold_checkpoint(checkpoint) as other:
            assert name.exists() and other.exists() and name != other and not left.exists()
        before = file_stamps(name)
        assert name.read_bytes() == checkpoint.read_bytes() and file_stamps(name) == before
        torch.save({}, checkpoint)
        assert file_stamps(name) != before
    assert not [*FOLDER.glob(".last.*")]


@pytest.mark.parametrize(("given", "asked"), [([], (700, 0.9)), (["--prompts=50", "--confidence=0.8"], (50, 0.8))])
def test_a_declared_look_is_the_default(given, asked, monkeypatch):
    found = []
    monkeypatch.setattr(command, "find_checkpoint", lambda *_: None)
    monkeypatch.setattr(command, "_certify", lambda config, beginning, objective, *options: found.append(options))
    look = ["--model.objective.look.prompts=700", "--model.objective.look.confidence=0.9"]
    command.main([*SMALL, *look, *given])
    assert found == [asked]
