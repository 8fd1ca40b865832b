"""The configurations of the paper's NAVSIM experiment: its numbers, and that all stages run, with a tiny model."""

import json
import shlex
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from driving_scenes.errors import InputError
from lightning_cgrpo.__main__ import main, read_arguments
from tests.examples.test_covla import clip
from tests.examples.test_covla import write as write_clip
from tests.policies.tiny_families import write
from tests.policies.tiny_vision import make_tiny_vision_model

GENERAL, NAVSIM, RL = (
    f"configs/paper/{name}.yaml" for name in ("navsim_sft_1_general", "navsim_sft_2_navsim", "navsim_qwen2_5_vl_3b")
)
DECLARED, LORA, INTERNVL = (f"configs/paper/navsim_{name}.yaml" for name in ("declared", "lora", "internvl3_2b"))
ARGOVERSE = str(Path(__file__).parents[1] / "examples/scene_sources/argoverse2.yaml")


def read(*names):
    config, flags = read_arguments("fit", [word for name in names for word in ("-c", name)])
    assert not flags
    return config


def test_images_have_the_size_that_qwens_processor_makes_of_a_camera_s():
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    form, pixels = read(RL)["data"]["init_args"]["form"], (16_384, 262_144)
    assert smart_resize(1080, 1920, 28, *pixels) == (form["height"], form["width"])
    assert smart_resize(form["height"], form["width"], 28, *pixels) == (form["height"], form["width"])
    assert form["height"] // 28 * (form["width"] // 28) == 312, "the tokens in the comment"
    covla = read(GENERAL)["data"]["init_args"]["form"]
    assert smart_resize(1208, 1928, 28, *pixels) == (covla["height"], covla["width"])


pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    texts = ["front view, t=0.0s", "Intent: go left.\nSpeed: 7.3 m/s.", "[-14.5,0.0], [12.0,0.3]"]
    folder = tmp_path_factory.mktemp("small")
    return make_tiny_vision_model(folder / "tiny", texts, hidden_size=32, layers=1, vision_layers=1)


SMALL = shlex.split(
    "--model.policy.min_pixels=256 --model.sampler.max_new_tokens=8 --data.form.height=16 --data.form.width=32 "
    "--data.prompts_per_update=2 --data.val_prompts=1 --data.test_prompts=2 --trainer.max_steps=1 "
    "--trainer.accelerator=cpu --trainer.devices=1 --trainer.strategy=auto --trainer.precision=32-true --threads=1 "
    "--trainer.enable_progress_bar=false --trainer.enable_model_summary=false"
)
SCENES = ["--data.scenes=GeneratedScenes", "--data.train_prompts=2"]
LEARN = [*SMALL, "--callbacks.progress=null", "--callbacks.initial_rates=null", "--trainer.val_check_interval=1"]


def written(pattern):
    """The checkpoint of the one run at these folders, and the tags of its events."""
    (run,) = Path("runs").glob(pattern)
    events = EventAccumulator(str(run), size_guidance={"images": 0})
    events.Reload()
    return torch.load(run / "checkpoints" / "last.ckpt", weights_only=True), events.Tags()


@pytest.mark.slow
def test_all_stages(model):
    """From a model over two stages of demonstrations, the first on CoVLA's with thoughts, to Constrained GRPO."""
    folder = write_clip(Path("data/covla"), clip(), "a")
    thoughts = [{"scene": f"covla_a_00{frame}", "text": "The road bends."} for frame in (30, 40)]
    (folder / "thoughts.jsonl").write_text("".join(json.dumps(thought) + "\n" for thought in thoughts))
    main(["fit", "-c", GENERAL, *SMALL, f"--model.policy.model={model}", "--data.scenes.stride=0.5"])
    main(["fit", "-c", NAVSIM, *SMALL, *SCENES, "--trainer.val_check_interval=1"])
    assert Path("models/navsim_sft_2_navsim/model.safetensors").is_file()
    main(["fit", "-c", RL, *LEARN, *SCENES])
    saved, tags = written("navsim_qwen2_5_vl_3b,*/version_0")
    assert saved["global_step"] == 1 and "LagrangianCallback" in saved["callbacks"]
    assert set(tags["images"]) == {"drives/0", "drives/1", "val_drives/0"}
    assert {"rate/NC", "rate/DAC", "rate/DDC", "val/rate/malformed"} <= set(tags["scalars"])


def test_what_is_missing_is_said_first():
    """No trust in pickles."""
    with pytest.raises(InputError, match="Expected `allow_pickles` to be true"):
        main(["fit", "-c", RL, "--trainer.accelerator=cpu"])


@pytest.mark.slow
def test_argoverse_in_the_place_of_the_scenes(model, shared_data, capsys):
    """The command of docs/driving_data.md: all scenes are test scenes."""
    path = shared_data / "driving" / "argoverse2"
    arguments = [f"--model.policy.model={model}", *LEARN, "--data.test_prompts=null", f"--data.scenes.path={path}"]
    main(["test", "-c", RL, "-c", ARGOVERSE, *arguments, "--data.form.frames=1"])
    assert "41 x 1" in capsys.readouterr().out


def trained(*files, model):
    """The checkpoint and the run's events after one update of the paper's file under overrides."""
    overlays = (word for file in files for word in ("-c", file))
    main(["fit", "-c", RL, *overlays, *LEARN, *SCENES, f"--model.policy.model={model}"])
    return written("*/version_0")


@pytest.mark.slow
def test_declared_progress_and_comfort_are_weighed_at_one_scale(model):
    assert read(RL, DECLARED)["model"]["init_args"]["estimator"]["init_args"] == {"scale": "pooled"}
    _, tags = trained(DECLARED, model=model)
    assert {"multiplier/progress", "multiplier/EC", "rate/EC", "mean/progress"} <= set(tags["scalars"])


@pytest.mark.slow
def test_adapters_are_all_that_one_gpu_trains(model):
    saved, tags = trained(DECLARED, LORA, model=model)
    names = [name for name in saved["state_dict"] if name.startswith("policy.")]
    assert names and all(".lora_" in name for name in names)
    assert "multiplier/EC" in tags["scalars"]


@pytest.mark.slow
def test_internvl_goes_in_qwens_place(tmp_path):
    saved, tags = trained(INTERNVL, DECLARED, model=write(tmp_path / "internvl", "internvl"))
    assert any("vision_tower" in name for name in saved["state_dict"]) and "multiplier/EC" in tags["scalars"]
