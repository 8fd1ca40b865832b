"""One update of the paper's NAVSIM configuration with Qwen2.5-VL-3B's widths, cut to a few layers.

    python -m benchmarks.real_size_vision      # some minutes on one core and 14 GB; writes benchmarks/results/

Runs configs/paper/navsim_qwen2_5_vl_3b.yaml on the CPU with fewer answers: nine images per prompt, two passes over
the rollout, the reference, gradient checkpointing. Weights are random; scenes are generated, with cameras of NAVSIM's
size. The tokenizer is a byte-level BPE trained on the prompts, because Qwen's needs a network; embeddings have Qwen's
151,936 rows. Random weights write malformed, endless answers. Memory is the peak resident set of each phase, sampled
every 20 ms.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.half_billion import Phases
from lightning_cgrpo import ConstrainedGRPO, GeneratedScenes
from lightning_cgrpo.__main__ import main as run
from lightning_cgrpo.policies.tiny.text import END_OF_TEXT, TURN_END, train_tokenizer
from lightning_cgrpo.policies.tiny.vision import CHAT_TEMPLATE, IMAGE, VIDEO, VISION_END, VISION_START
from lightning_cgrpo.tasks.driving.prompts import PromptFormat, messages

RESULTS = Path(__file__).parent / "results" / "real_size_vision.json"
CONFIG = "configs/paper/navsim_qwen2_5_vl_3b.yaml"
LANGUAGE = {
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 11_008,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128_000,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": [16, 24, 24]},
}
VISION = {
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "patch_size": 14,
    "window_size": 112,
    "out_hidden_size": 2048,
}
WATCHED = {"sample": "rollout", "score": "score", "_log_probs": "reference", "_optimize": "optimize"}


def make_model(folder: Path, layers: int, vision_layers: int) -> int:
    """Write the model in bfloat16, like Qwen's; return its number of parameters."""
    from transformers import GenerationConfig, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    scenes = GeneratedScenes(1, 20).scenes("train")
    parts = [part for scene in scenes for message in messages(scene, PromptFormat()) for part in message["content"]]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    tokenizer = train_tokenizer(texts, 2048, [VISION_START, VISION_END, IMAGE, VIDEO])
    tokenizer.chat_template = CHAT_TEMPLATE
    names = (END_OF_TEXT, TURN_END, VISION_START, VISION_END, IMAGE, VIDEO)
    pad, end, start, stop, image, video = tokenizer.convert_tokens_to_ids(names)
    config = Qwen2_5_VLConfig(
        text_config={**LANGUAGE, "num_hidden_layers": layers, "eos_token_id": end, "pad_token_id": pad},
        vision_config={**VISION, "depth": vision_layers, "fullatt_block_indexes": [vision_layers - 1]},
        tie_word_embeddings=True,
        vision_start_token_id=start,
        vision_end_token_id=stop,
        image_token_id=image,
        video_token_id=video,
        dtype=torch.bfloat16,
    )
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration(config).bfloat16()
    model.generation_config = GenerationConfig(eos_token_id=[end, pad], pad_token_id=pad)
    for piece in (model, tokenizer, Qwen2VLImageProcessorPil(patch_size=14)):
        piece.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


@contextmanager
def watched(phases: Phases) -> Iterator[list[int]]:
    """Watch the phases of updates; the yielded list receives prompt lengths in tokens."""
    prompts: list[int] = []

    def of(phase: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(module: ConstrainedGRPO, *arguments: Any) -> Any:
            with phases.of(phase):
                result = method(module, *arguments)
            if phase == "rollout":
                prompts.extend(result.inputs["prompt_mask"].sum(-1).tolist())
            return result

        return call

    with ExitStack() as stack:
        for name, phase in WATCHED.items():
            stack.enter_context(patch.object(ConstrainedGRPO, name, of(phase, getattr(ConstrainedGRPO, name))))
        yield prompts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2, help="of the language model, of Qwen's 36")
    parser.add_argument("--vision-layers", type=int, default=2, help="of the vision tower, of Qwen's 32")
    parser.add_argument("--group-size", type=int, default=4, help="of the paper's 16")
    parser.add_argument("--tokens", type=int, default=16, help="of an answer")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(arguments)
    phases = Phases()
    with tempfile.TemporaryDirectory() as folder, chdir(folder), watched(phases) as prompts:
        parameters = make_model(Path(folder) / "model", given.layers, given.vision_layers)
        gc.collect()
        phases.phase = "load"
        run(
            [
                *("fit", "-c", CONFIG, f"--model.policy.model={folder}/model"),
                *("--data.scenes=GeneratedScenes", "--data.scenes.count=1", "--data.prompts_per_update=1"),
                *(f"--model.group_size={given.group_size}", f"--model.sampler.max_new_tokens={given.tokens}"),
                *("--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.precision=32-true"),
                "--trainer.strategy=auto",
                *("--trainer.max_steps=1", "--trainer.limit_val_batches=0", f"--threads={given.threads}"),
                *(f"--callbacks.{name}=null" for name in ("initial_rates", "checkpoints", "progress", "samples")),
                *("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"),
                "--trainer.enable_checkpointing=false",
            ]
        )
    result = {
        "machine": f"{platform.processor() or platform.machine()}, {given.threads} threads",
        "layers": given.layers,
        "vision_layers": given.vision_layers,
        "parameters": parameters,
        "prompt_tokens": prompts[0],
        "group_size": given.group_size,
        "answer_tokens": given.tokens,
        "gigabytes_of_weights_gradients_moments_reference": round(20 * parameters / 1e9, 2),
        "cpu_seconds": {name: round(value, 1) for name, value in phases.cpu_seconds.items()},
        "peak_gigabytes": {name: round(value / 1e9, 2) for name, value in phases.peak.items() if name != "start"},
    }
    print(json.dumps(result, indent=1))
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
