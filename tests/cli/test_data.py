"""The command data: on a fake tree of NAVSIM's data with planted faults, and on files of prompts."""

import json
import pickle
from contextlib import suppress
from pathlib import Path

import pytest

from driving_scenes.errors import InputError
from lightning_cgrpo.__main__ import main
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from tests.driving_scenes.devkit_files import write_caches, write_image, write_log, write_maps, write_split
from tests.driving_scenes.fake_devkit import install
from tests.driving_scenes.made_up_drive import TOWN, synthetic

PAPER = ["-c", "configs/paper/navsim_qwen2_5_vl_3b.yaml", "--data.scenes.allow_pickles=true"]
WHOLE = ["--data.scenes.train_part=[0, 1]", "--data.scenes.val_share=0.1", "--data.scenes.metric_caches=true"]
CAMERAS = ("CAM_F0", "CAM_L0", "CAM_R0")
TRAIN = [f"2021.{number:02}" for number in range(16)]
TEST = [f"2021.{number}" for number in range(16, 20)]
OTHER_TOWN = "us-pa-pittsburgh-hazelwood"


def follow_ups(log):
    """Tokens of the follow-ups of a test log's two frames."""
    return f"{log}-now".ljust(17, "x"), f"{log}-before".ljust(17, "x")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Twenty logs in the layout of the paper's configuration: navtrain, and navhard with its synthetic scenes."""
    config = install(monkeypatch, tmp_path)
    for log in TRAIN:
        write_log(tmp_path, "trainval", log, CAMERAS, OTHER_TOWN if log == TRAIN[0] else TOWN)
    navhard = tmp_path / "data" / "navhard_two_stage"
    (navhard / "synthetic_scene_pickles").mkdir(parents=True)
    for log in TEST:
        write_log(tmp_path, "test", log, CAMERAS)
        for token, after in zip(follow_ups(log), (12, 11), strict=True):
            scene = synthetic(log, token, f"{log}-{after}")
            (navhard / "synthetic_scene_pickles" / f"{token}.pkl").write_bytes(pickle.dumps(scene))
            for cameras in scene["frames"]:
                for camera in cameras["camera_dict"].values():
                    write_image(navhard / "sensor_blobs" / camera["data_path"])
    tokens = [f"{log}-3" for log in TRAIN]
    write_split(config, "navtrain", "trainval", TRAIN, frame_interval=1, num_future_frames=10, tokens=tokens)
    pairs = [[f"{log}-4", f"{log}-3", [list(follow_ups(log))]] for log in TEST]
    tests = [token for now, before, _ in pairs for token in (now, before)]
    hard = {"frame_interval": 1, "num_future_frames": 8, "include_synthetic_scenes": True, "tokens": tests}
    write_split(config, "navhard_two_stage", "test", TEST, pairs, **hard)
    write_maps(tmp_path, TOWN, OTHER_TOWN)
    write_caches(tmp_path, [*tokens, *tests, *(token for log in TEST for token in follow_ups(log))])
    return tmp_path


def printed(capsys, *arguments):
    """What the command prints, without the error at its end."""
    capsys.readouterr()
    with suppress(UserError):
        main(["data", *PAPER, *WHOLE, *arguments])
    return capsys.readouterr().out


def test_a_whole_tree(tree, capsys):
    main(["data", *PAPER, *WHOLE])
    printed = capsys.readouterr().out
    lines = [line.split()[:5] for line in printed.splitlines()]
    assert ["train", "logs", "14", "14", "0"] in lines  # 2 of 16 are for validation
    assert ["test", "tokens", "8", "8", "0"] in lines
    assert ["train", "images", str(14 * 9), str(14 * 9), "0"] in lines  # three frames of three cameras
    assert ["test", "images", str(4 * 12 + 8 * 9), str(4 * 12 + 8 * 9), "0"] in lines
    assert ["test", "synthetic", "scenes", "8", "8"] in lines


def test_twelve_faults_are_named(tree, capsys):
    """Each fault is one line, with the path."""
    data, caches = tree / "data", tree / "exp" / "metric_cache"
    logs, blobs, hard = data / "navsim_logs" / "trainval", data / "sensor_blobs", data / "navhard_two_stage"
    listed = caches / "metadata" / "0.csv"
    cut, cache, gone = (caches / "log" / "unknown" / f"{TRAIN[n]}-3" / "metric_cache.pkl" for n in (5, 6, 7))
    broken = hard / "synthetic_scene_pickles" / f"{follow_ups(TEST[0])[0]}.pkl"
    lost = hard / "synthetic_scene_pickles" / f"{follow_ups(TEST[1])[0]}.pkl"
    image = hard / "sensor_blobs" / follow_ups(TEST[2])[0] / "cam_f0" / "3.jpg"
    pictures = [blobs / "trainval" / TRAIN[number] / "F0" / "3.jpg" for number in (8, 9, 10)]
    token = f"{TEST[3]}-4"

    (logs / f"{TRAIN[2]}.pkl").unlink()  # 1
    (logs / f"{TRAIN[3]}.pkl").write_bytes((logs / f"{TRAIN[3]}.pkl").read_bytes()[:-100])  # 2
    (logs / f"{TRAIN[4]}.pkl").write_bytes(pickle.dumps([{"token": "a", "anns": {}}]))  # 3
    cut.write_bytes(cut.read_bytes()[:-10])  # 4
    cache.unlink()  # 5
    listed.write_text("\n".join(line for line in listed.read_text().splitlines() if line != str(gone)))  # 6
    pictures[0].unlink()  # 7
    pictures[1].write_bytes(b"")  # 8
    pictures[2].write_bytes(b"\xff\xd8pic")  # 9
    (tree / "maps" / OTHER_TOWN / "9.17" / "map.gpkg").write_bytes(b"<html>not found</html>")  # 10
    broken.write_bytes(b"\x80\x04")  # 11
    lost.unlink()
    image.unlink()  # 12
    test_log = [frame | ({"token": "other"} if frame["token"] == token else {}) for frame in _log(data, TEST[3])]
    (data / "navsim_logs" / "test" / f"{TEST[3]}.pkl").write_bytes(pickle.dumps(test_log))

    out = printed(capsys, "--out", str(tree / "faults.txt"))
    faults = [line.split(": ", 1)[1] for line in (tree / "faults.txt").read_text().splitlines()]
    expected = [
        f"{logs / TRAIN[2]}.pkl: missing",
        f"{logs / TRAIN[3]}.pkl: corrupt (",
        f"{logs / TRAIN[4]}.pkl: corrupt (KeyError: 'map_location')",
        f"{cut}: cut off",
        f"{cache}: missing",
        f"{caches / 'metadata'}: no cache of {TRAIN[7]}-3",
        f"{pictures[0]}: missing",
        f"{pictures[1]}: empty",
        f"{pictures[2]}: cut off",
        f"{tree / 'maps' / OTHER_TOWN}: corrupt",
        f"{broken}: corrupt (",
        f"{lost.parent}: no synthetic scene {lost.stem}",
        f"{image}: missing",
        f"{data / 'navsim_logs' / 'test'}: no token {token}",
    ]
    for line in expected:
        assert sum(fault.startswith(line) for fault in faults) == 1, line
        assert line in out
    # Tokens of a corrupt synthetic scene and of a scene that follows a missing token are missing, too.
    rest = [fault for fault in faults if not fault.startswith(tuple(expected))]
    assert rest == [f"{lost.parent}: no synthetic scene {follow_ups(log)[0]}" for log in (TEST[0], TEST[3])]


def _log(data: Path, log: str) -> list[dict[str, object]]:
    content: list[dict[str, object]] = pickle.loads((data / "navsim_logs" / "test" / f"{log}.pkl").read_bytes())
    return content


def test_a_run_refuses_what_the_command_lists(tree, capsys):
    (tree / "data" / "navsim_logs" / "trainval" / f"{TRAIN[2]}.pkl").unlink()
    with pytest.raises(UserError, match="logs of train are missing or corrupt, so that a run refuses to start"):
        main(["data", *PAPER, *WHOLE])
    with pytest.raises(InputError, match=r"but got 13 of 14 logs .* try `python -m lightning_cgrpo data"):
        main(["fit", *PAPER, *WHOLE, "--trainer.accelerator=cpu", "--trainer.strategy=auto", "--trainer.devices=1"])


OWN = """\
model:
  class_path: lightning_cgrpo.ConstrainedGRPO
  init_args:
    policy: {class_path: lightning_cgrpo.CausalLMPolicy, init_args: {model: packaged:word-problems}}
    sampler: {class_path: lightning_cgrpo.GenerationSampler, init_args: {max_new_tokens: 8}}
    task: {class_path: lightning_cgrpo.FunctionTask, init_args: {signals: {size: rewards.length}}}
    objective: {reward: size}
    optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 1.0e-3}}
data:
  class_path: lightning_cgrpo.datamodules.PromptDataModule
  init_args: {path: train.jsonl, test_path: test.jsonl, val_prompts: 1}
"""


@pytest.fixture
def own(folder):
    """A folder with a job of one's own."""
    Path("rewards.py").write_text("def length(completions):\n    return [float(len(text)) for text in completions]\n")
    Path("own.yaml").write_text(OWN)


@pytest.mark.usefixtures("own")
def test_prompts(capsys):
    """Malformed records, columns, repeats and prompts beyond the model's context."""
    prompts = ["2 + 2", "2 + 2", "3 + 3", "1 " * 400]
    lines = [json.dumps({"prompt": prompt, "answer": "4"}) for prompt in prompts]
    Path("train.jsonl").write_text("\n".join([*lines, "{", '{"text": "2"}']))
    Path("test.jsonl").write_text(json.dumps({"prompt": "5"}))
    with pytest.raises(UserError, match="but records of train"):
        main(["data", "-c", "own.yaml"])
    printed = capsys.readouterr().out
    assert "- train: train.jsonl:5: Expected a JSON object" in printed
    assert "- train: train.jsonl:6: Expected a field 'prompt'" in printed
    assert "1 repeat" in printed
    Path("train.jsonl").write_text("\n".join(lines))
    with pytest.raises(UserError, match="but lengths of prompts of train"):
        main(["data", "-c", "own.yaml"])
    assert "prompt 1: 8" in capsys.readouterr().out


CHAT_LINE = {"prompt": [{"role": "user", "content": "2 + 2"}], "answer": "4", "completion": "4"}


@pytest.mark.usefixtures("own")
def test_the_rendered_prompt_and_demonstration_are_shown(capsys):
    """With the system's message, the tools of the row and the tokens that end answers."""
    tool = {"type": "function", "function": {"name": "look_up"}}
    Path("train.jsonl").write_text("\n".join(json.dumps({**CHAT_LINE, "tools": [tool]}) for _ in range(2)))
    Path("test.jsonl").write_text(json.dumps(CHAT_LINE))
    make_tiny_model("tiny", hidden_size=32, layers=1)
    chats = OWN.replace("val_prompts: 1", "system_prompt: Be kind.").replace("packaged:word-problems", "tiny")
    Path("own.yaml").write_text(chats)
    main(["data", "-c", "own.yaml"])
    printed = capsys.readouterr().out
    assert '{"name": "look_up"}' in printed and r"system\nBe kind.<|im_end|>\n<|im_start|>user\n2 + 2" in printed
    assert "trained tokens" not in printed and "Answers end at <|endoftext|>, <|im_end|>." in printed
    Path("sft.yaml").write_text(chats.replace("ConstrainedGRPO", "SupervisedFineTuning"))
    main(["data", "-c", "sft.yaml"])
    assert "trained tokens:\n4<|im_end|>\nAnswers end" in capsys.readouterr().out
