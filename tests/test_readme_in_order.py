"""The commands of the README and the tour, in order in one folder, as a reader runs them; each an update long."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import pytest
import torch

from lightning_cgrpo.__main__ import main
from lightning_cgrpo.scenes.generator import GeneratedScenes
from lightning_cgrpo.scenes.scene_file import write_scene

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md").read_text(encoding="utf-8") + (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
COMMANDS = [
    line.partition("-m lightning_cgrpo ")[2]
    for block in re.findall(r"```bash\n(.*?)```", PAGES, re.DOTALL)
    for line in block.splitlines()
    if "-m lightning_cgrpo " in line
]
# None of these is part of a run's name.
FEW = (
    "--trainer.max_steps=1 --trainer.limit_val_batches=0 --trainer.enable_progress_bar=false "
    "--trainer.enable_model_summary=false --callbacks.initial_rates=null"
)
SHORT = {
    "gridworld": f"{FEW} --callbacks.pictures=null --data.test_prompts=20",
    "navsim": f"{FEW} --callbacks.drives=null --data.max_eval_prompts=2",
    "gsm8k": f"{FEW} --data.max_eval_prompts=8 --data.test_train_prompts=0",
    "navsim_sft": f"{FEW} --data.max_eval_prompts=2",
    "gsm8k_sft": FEW,
}
QWEN = {
    "model_type": "qwen2_5_vl", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 11008,
    "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2, "tie_word_embeddings": True,
    "vision_config": {
        "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "patch_size": 14,
        "spatial_merge_size": 2, "out_hidden_size": 2048, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What every command printed, by its text, and the folder that they ran in."""
    folder, out = tmp_path_factory.mktemp("readme"), {}
    (folder / "config.json").write_text(json.dumps(QWEN))
    for split in ("train", "test"):
        rows = [{"question": f"{n} apples and 4?", "answer": f"#### {n + 4}"} for n in range(600)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "scenes").mkdir()
    scene = GeneratedScenes(seed=0).scenes("test")[0]
    write_scene(scene, folder / "scenes" / "one.scene.json")
    times = torch.arange(0.5, 4.5, 0.5)
    poses = torch.stack([5 * times, 0 * times, 0 * times], 1).tolist()
    (folder / "scenes" / "one.trajs.json").write_text(json.dumps({"trajectories": [{"tag": "mine", "poses": poses}]}))
    places = {
        "PATH/TO/config.json": "config.json", "PATH/TO/gsm8k": ".", "PATH/TO/scenes": "scenes",
        "PATH/TO/answers": "scenes",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in COMMANDS:
            name, *arguments = shlex.split(command)
            arguments = [re.sub("|".join(places), lambda place: places[place[0]], word) for word in arguments]
            config = re.search(r"configs/(\w+)\.yaml", command)
            if name in ("fit", "test") and config:
                # Before the command's own, which stand.
                arguments = [*arguments[:2], *shlex.split(SHORT[config[1]]), *arguments[2:]]
            with contextlib.redirect_stdout(io.StringIO()) as said:
                main([name, *arguments])
            out[command] = said.getvalue()
    return folder, out


@pytest.mark.slow
def test_every_command_runs_where_those_before_it_ran(ran):
    assert ran[1].keys() == set(COMMANDS) and len(COMMANDS) >= 15


@pytest.mark.slow
def test_methods_have_folders_of_their_own(ran):
    runs = {path.name for path in (ran[0] / "runs").iterdir()}
    assert runs >= {
        "gridworld", "gridworld,scalarized_rewards", "gridworld,controller=PID", "navsim", "navsim,grpo_epdms",
        "navsim_sft", "gsm8k", "gsm8k,fixed_weights", "gsm8k_real", "gsm8k_sft",
    }  # fmt: skip
    assert any(name.startswith("gridworld,multipliers=FixedWeights,weights=") for name in runs)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["gridworld", "navsim", "gsm8k"])
def test_the_test_is_of_the_run_of_the_same_name(ran, task):
    """Whatever ran in between; and it logs into that run's folder."""
    folder, out = ran
    (said,) = (text for command, text in out.items() if command == f"test -c configs/{task}.yaml --ckpt_path=last")
    runs = COMMANDS.count(f"fit -c configs/{task}.yaml")
    newest = f"version_{runs - 1}"
    assert f"Testing runs/{task}/{newest}/checkpoints/last.ckpt." in said
    assert {path.name for path in (folder / "runs" / task).glob("version_*")} == {f"version_{n}" for n in range(runs)}
    assert len(list((folder / "runs" / task / newest).glob("events*"))) >= 2


@pytest.mark.slow
def test_a_test_without_a_checkpoint_says_what_it_tests(ran):
    said = ran[1]["test -c configs/navsim.yaml"]
    assert "Testing the starting weights (packaged:driver); --ckpt_path=last" in said


@pytest.mark.slow
def test_supervised_fine_tuning_shadows_no_packaged_model(ran):
    """`fit -c configs/gsm8k_sft.yaml` writes models/word-problems; configs/gsm8k.yaml starts from the packaged one."""
    folder, _ = ran
    assert (folder / "models" / "word-problems" / "config.json").is_file()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        main(["fit", "-c", "configs/gsm8k.yaml", *shlex.split(SHORT["gsm8k"])])
    first, *_, again = (json.loads(path.read_text()) for path in sorted(folder.glob("runs/gsm8k/*/weights.json")))
    assert first == again and first["name"] == "packaged:word-problems"
