"""A driver that is told the truth goes on with an answer that begins with it."""

from transformers import AutoTokenizer

from benchmarks.navsim.forced import MODEL, told, write_model
from driving_scenes.generator import GeneratedScenes
from lightning_cgrpo.tasks.driving.moving_observations import MovingObservations
from lightning_cgrpo.tasks.driving.prompts import PromptFormat, messages


def test_an_answer_begins_with_the_truth(tmp_path):
    write_model(tmp_path / "told")
    scene, form = GeneratedScenes(1).scenes("test")[0], PromptFormat(frames=2, height=64, width=64, system=False)
    options = {"tokenize": False, "add_generation_prompt": True}
    usual = AutoTokenizer.from_pretrained(MODEL).apply_chat_template(messages(scene, form), **options)
    begun = AutoTokenizer.from_pretrained(tmp_path / "told").apply_chat_template(told(scene, form), **options)
    assert begun == f"{usual}{MovingObservations()(scene)}\n" and usual.endswith("<|im_start|>assistant\n")
