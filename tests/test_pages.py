"""Every command and snippet of the pages for newcomers runs, in the order of the page, in one folder as a reader's.

A block with a title is a file. Other blocks of Python run, and so do the package's commands, an update or two long. A
study lists its runs. On all other pages, commands are parsed and links lead to files.
"""

import doctest
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path

import pytest
import torch

from driving_scenes.generator import GeneratedScenes
from driving_scenes.scene_file import write_scene
from lightning_cgrpo.__main__ import RUNS, TOOLS, main, read_arguments
from tests.quiet import QUIET

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "your_problem"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)
# The last ones stand, whatever a command says.
FEW = dict.fromkeys(RUNS, QUIET) | {"fit": f"--trainer.max_steps=2 {QUIET}", "study": "--list"}
# Before the command's own, which stand; none of these is part of a run's name.
SHORT = f"--trainer.max_steps=1 --trainer.limit_val_batches=0 {QUIET} --callbacks.initial_rates=null"
OF_CONFIG = {
    "gridworld": "--callbacks.pictures=null --data.test_prompts=20",
    "navsim": "--callbacks.drives=null --data.val_prompts=2 --data.test_prompts=2",
    "gsm8k": "--data.val_prompts=8 --data.test_prompts=8 --data.test_train_prompts=0",
    "navsim_sft": "--data.val_prompts=2 --data.test_prompts=2",
    "gsm8k_sft": "",
}
QWEN = {
    "model_type": "qwen2_5_vl", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 11008,
    "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2, "tie_word_embeddings": True,
    "vision_config": {
        "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "patch_size": 14,
        "spatial_merge_size": 2, "out_hidden_size": 2048, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
    },
}  # fmt: skip
PLACES = {"PATH/TO/MODEL": ".", "PATH/TO/gsm8k": ".", "PATH/TO/scenes": "scenes", "PATH/TO/answers": "scenes"}


def blocks(page: Path) -> list[tuple[str, str, str]]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def commands(page: Path) -> list[str]:
    lines = [line for kind, _, text in blocks(page) if kind == "bash" for line in text.splitlines()]
    return [line.partition("-m lightning_cgrpo ")[2] for line in lines if "-m lightning_cgrpo " in line]


def run(arguments: list[str]) -> str:
    with redirect_stdout(io.StringIO()) as said:
        main(arguments)
    return said.getvalue()


PROSE = ("start", "your_problem")
NEWCOMERS = (
    *("start", "your_problem", "chats_and_images", "environment_without_gymnasium"),
    *("environments", "conversations", "callbacks"),
)
PAGES = [ROOT / "README.md", ROOT / "navsim_score" / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_and_commands_are_understood(page):
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#][^)\s]*)\)", re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL))
    assert [li for li in links if "://" not in li and not (page.parent / li.partition("#")[0]).exists()] == []
    for command in commands(page):
        name = command.split()[0]
        assert name in {**RUNS, **TOOLS}
        if name in RUNS and page.stem in ("README", "tour") and "-c configs/" in command:
            read_arguments(name, shlex.split(command)[1:])


def test_commands_in_configurations_and_sources_exist():
    """A configuration's own lines, which nothing parses, too; pages may name what a commit of old had."""
    places = ("configs", "examples", "callbacks", "datamodules", "lightning_cgrpo", "driving_scenes", "navsim_score")
    files = [path for place in places for path in (ROOT / place).rglob("*.*") if path.suffix in (".py", ".yaml", ".md")]
    found = 0
    for path in files:
        for module, command in re.findall(r"python -m ([\w.]+)(?: ([a-z][\w-]+))?", path.read_text(encoding="utf-8")):
            found += 1
            where = f"{path.relative_to(ROOT)}: python -m {module} {command}"
            if module == "lightning_cgrpo":
                assert command in {"", "COMMAND", *RUNS, *TOOLS}, where
            elif module == "navsim_score":
                assert command in {"", "score", "scenes", "store"}, where
            elif module.partition(".")[0] in ("benchmarks", "examples", "docs", "tests"):
                file = ROOT / module.replace(".", "/")
                assert file.with_suffix(".py").exists() or (file / "__main__.py").exists(), where
    assert found > 100


def test_ci_finds_the_test_command():
    pattern = re.search(r"grep -m1 '(.*?)' README.md", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert next(line for line in lines if re.search(pattern[1], line)).startswith("python3 -m venv")


def test_the_example_s_own_test_passes(tmp_path):
    for name in ("my_rewards.py", "test_my_rewards.py"):
        shutil.copy(EXAMPLE / name, tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "test_my_rewards.py"]
    tested = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert tested.returncode == 0 and "3 passed" in tested.stdout, tested.stdout


def test_the_example_trains_where_it_was_copied(folder):
    """Its functions are found beside the configuration, also from another folder."""
    shutil.copytree(EXAMPLE, folder / "mine", ignore=shutil.ignore_patterns("__pycache__", "runs"))
    data = "--data.path=mine/prompts.jsonl --data.test_path=mine/test.jsonl --data.prompts_per_update=2"
    said = run(shlex.split(f"fit -c mine/your_problem.yaml {data} --model.group_size=4 {SHORT}"))
    assert "Answers of update 0" in said and "explained" in said
    assert list(folder.glob("runs/your_problem*/version_0/checkpoints/last.ckpt"))


def test_numbers_in_prose_are_those_of_the_committed_run():
    """The summary of ``fit -c your_problem.yaml``: both pages' sentences, and the printed card, have its numbers."""
    run = json.loads((ROOT / "docs/results/your_problem/summary.json").read_text(encoding="utf-8"))["measured"]
    start, problem = (" ".join((ROOT / f"docs/{name}.md").read_text("utf-8").split()) for name in PROSE)
    before, end = run["before"], run["end"]
    for name in ("correct", "explained"):
        first, last = (f"{part['constraints'][name]['value']:.3f}" for part in (before, end))
        assert f"{name} answers rises from {first} to {last}" in problem
        assert re.search(rf"{name} >= 0.. {first} {last} ", start), "the card"
    assert f"{before['constraints']['correct']['value']:.0%}".replace("%", " %") + " are correct" in start
    characters = [round(-100 * part["reward"]["value"]) for part in (before, end)]
    assert "shorten from {} to {} characters".format(*characters) in problem
    first, last = before["reward"], end["reward"]
    assert f"reward {first['value']:.4g} ± {first['error']:.2g} {last['value']:.4g}" in start


@pytest.mark.slow
@pytest.mark.parametrize("name", NEWCOMERS)
def test_a_page(name, folder, monkeypatch):
    for file in EXAMPLE.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    monkeypatch.syspath_prepend(str(folder))
    page, ran = ROOT / "docs" / f"{name}.md", 0
    for kind, title, text in blocks(page):
        if title:
            assert not Path(title).exists()
            Path(title).write_text(text, encoding="utf-8")
            continue
        ran += kind in ("bash", "python", "pycon")
        if kind == "bash":
            for line in (line for line in text.splitlines() if "-m lightning_cgrpo " in line):
                command, *arguments = shlex.split(line.partition("-m lightning_cgrpo ")[2], comments=True)
                try:
                    run([command, *arguments, *shlex.split(FEW.get(command, ""))])
                except SystemExit as end:
                    assert command == "certify" and end.code in (3, 4), "any verdict on so few updates"
        elif kind == "python":
            exec(compile(text, page.name, "exec"), {"__name__": "__main__"})
        elif kind == "pycon":
            example = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
            assert doctest.DocTestRunner().run(example).failed == 0
    assert ran


@pytest.mark.slow
def test_the_readme_and_the_tour(folder):
    """Methods have folders of their own, and a test is of the run of the same name, whatever ran in between."""
    Path("config.json").write_text(json.dumps(QWEN))
    for split in ("train", "test"):
        rows = [{"question": f"{n} apples and 4?", "answer": f"#### {n + 4}"} for n in range(600)]
        Path(f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("scenes").mkdir()
    write_scene(GeneratedScenes(seed=0).scenes("test")[0], Path("scenes/one.scene.json"))
    times = torch.arange(0.5, 4.5, 0.5)
    poses = torch.stack([5 * times, 0 * times, 0 * times], 1).tolist()
    Path("scenes/one.trajs.json").write_text(json.dumps({"trajectories": [{"tag": "mine", "poses": poses}]}))
    asked, said = [*commands(ROOT / "README.md"), *commands(ROOT / "docs" / "tour.md")], {}
    assert len(asked) >= 15
    for command in asked:
        name, *arguments = shlex.split(command)
        arguments = [re.sub("|".join(PLACES), lambda place: PLACES[place[0]], word) for word in arguments]
        config = re.search(r"configs/(\w+)\.yaml", command)
        if name in ("fit", "test") and config:
            arguments = [*arguments[:2], *shlex.split(f"{SHORT} {OF_CONFIG[config[1]]}"), *arguments[2:]]
        if name == "certify":
            with suppress(SystemExit):  # its verdict on two updates may be any
                run([name, *arguments, "--prompts", "60"])
        else:
            said[command] = run([name, *arguments])
    runs = {path.name for path in Path("runs").iterdir()}
    assert runs >= {
        "gridworld", "gridworld,scalarized_rewards", "gridworld,multipliers.controller=PID", "navsim",
        "navsim,grpo_epdms", "navsim_sft", "gsm8k", "gsm8k,fixed_weights", "gsm8k_real", "gsm8k_sft",
    }  # fmt: skip
    for task in ("gridworld", "navsim", "gsm8k"):
        newest = asked.count(f"fit -c configs/{task}.yaml") - 1
        tested = said[f"test -c configs/{task}.yaml --ckpt_path=last"]
        assert f"Testing runs/{task}/version_{newest}/checkpoints/last.ckpt." in tested
    assert "Testing the starting weights (packaged:driver)" in said["test -c configs/navsim.yaml --ckpt_path=null"]
    # Supervised fine-tuning wrote models/word-problems, which shadows no packaged model.
    assert Path("models/word-problems/config.json").is_file()
    run(["fit", "-c", "configs/gsm8k.yaml", *shlex.split(f"{SHORT} {OF_CONFIG['gsm8k']}")])
    weights = [json.loads(path.read_text())["weights"] for path in sorted(Path("runs/gsm8k").glob("*/summary.json"))]
    assert weights[0] == weights[-1] and weights[0] is not None

    records = [{"prompt": f"Say {word}.", "wanted": word} for word in ("yes", "no", "maybe") for _ in range(4)]
    Path("prompts.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n", encoding="utf-8")
    both = (block for file in ("README.md", "docs/tour.md") for block in blocks(ROOT / file))
    (example,) = [text for kind, _, text in both if kind == "python"]
    exec(compile(example, "tour.md", "exec"), {"__name__": "__main__"})
