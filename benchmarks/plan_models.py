"""Models of `benchmarks.plan`, with random weights, made-up prompts and run configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from lightning_cgrpo.datamodules.base import GroupDataModule, Split
from lightning_cgrpo.policies.tiny import vision as tiny
from lightning_cgrpo.policies.tiny.text import train_tokenizer
from lightning_cgrpo.prompt_source import PromptSource
from lightning_cgrpo.rollout import PromptGroups

# Sizes of the model, settings of the run, and whether formulas were written with the measurement in view.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "full": {
        "used": True,
        "model": {"width": 512, "layers": 8, "feed_forward": 2048, "heads": 8, "kinds": 2, "vocabulary": 8_192},
        "prompts": 2, "group": 4, "prompt_tokens": 128, "answer_tokens": 17, "kl_weight": 0.04,
    },
    "accumulated": {
        "used": True,
        "model": {"width": 384, "layers": 6, "feed_forward": 1024, "heads": 6, "kinds": 6, "vocabulary": 49_152},
        "prompts": 2, "group": 4, "prompt_tokens": 96, "answer_tokens": 17, "micro_batch_size": 4,
    },
    "adapters": {
        "used": True,
        "model": {"width": 640, "layers": 6, "feed_forward": 1792, "heads": 10, "kinds": 2, "vocabulary": 8_192},
        "prompts": 2, "group": 4, "prompt_tokens": 192, "answer_tokens": 17, "kl_weight": 0.04, "rank": 16,
    },
    "images": {
        "used": False,
        "model": {"width": 384, "layers": 5, "feed_forward": 1152, "heads": 6, "kinds": 2, "vocabulary": 8_192,
                  "vision": {"width": 320, "layers": 6, "feed_forward": 896, "heads": 5}},
        "prompts": 2, "group": 4, "images": 2, "image_size": 168, "answer_tokens": 13, "kl_weight": 0.04,
    },
    "minibatches": {
        "used": False,
        "model": {"width": 640, "layers": 8, "feed_forward": 1920, "heads": 10, "kinds": 5, "vocabulary": 12_288,
                  "tied": False},
        "prompts": 4, "group": 4, "prompt_tokens": 64, "answer_tokens": 13, "kl_weight": 0.04, "micro_batch_size": 4,
        "minibatch_size": 8,
    },
    "checkpointing": {
        "used": False,
        "model": {"width": 448, "layers": 12, "feed_forward": 1536, "heads": 7, "kinds": 1, "vocabulary": 20_480},
        "prompts": 1, "group": 6, "prompt_tokens": 512, "answer_tokens": 21, "checkpointing": True, "kl_weight": 0.04,
    },
    "lora": {
        "used": False,
        "model": {"width": 768, "layers": 6, "feed_forward": 2304, "heads": 12, "kinds": 2, "vocabulary": 16_384},
        "prompts": 3, "group": 4, "prompt_tokens": 96, "answer_tokens": 17, "rank": 8, "micro_batch_size": 8,
    },
    "vision": {
        "used": False,
        "model": {"width": 512, "layers": 6, "feed_forward": 1536, "heads": 8, "kinds": 2, "vocabulary": 12_288,
                  "vision": {"width": 384, "layers": 6, "feed_forward": 1024, "heads": 6}},
        "prompts": 2, "group": 4, "images": 1, "image_size": 224, "answer_tokens": 13, "micro_batch_size": 4,
    },
    "unshared": {
        "used": False,
        "model": {"width": 384, "layers": 6, "feed_forward": 1024, "heads": 6, "kinds": 6, "vocabulary": 49_152},
        "prompts": 2, "group": 8, "prompt_tokens": 96, "answer_tokens": 65, "kl_weight": 0.04, "share_prompts": False,
    },
    "critic": {
        "used": False,
        "model": {"width": 512, "layers": 6, "feed_forward": 1792, "heads": 8, "kinds": 2, "vocabulary": 8_192},
        "prompts": 2, "group": 4, "prompt_tokens": 128, "answer_tokens": 17, "kl_weight": 0.04, "critic": {},
    },
    "critic_adapters": {
        "used": False,
        "model": {"width": 640, "layers": 6, "feed_forward": 1792, "heads": 10, "kinds": 2, "vocabulary": 8_192},
        "prompts": 3, "group": 4, "prompt_tokens": 192, "answer_tokens": 17, "micro_batch_size": 4,
        "critic": {"rank": 16},
    },
    "critic_images": {
        "used": False,
        "model": {"width": 384, "layers": 5, "feed_forward": 1152, "heads": 6, "kinds": 2, "vocabulary": 8_192,
                  "vision": {"width": 320, "layers": 6, "feed_forward": 896, "heads": 5}},
        "prompts": 2, "group": 4, "images": 2, "image_size": 168, "answer_tokens": 13, "critic": {},
    },
}  # fmt: skip


def tokenizer_of(sizes: dict[str, Any]) -> Any:
    """A tokenizer of digits, with image placeholders for vision models."""
    special = tiny.VISION_START, tiny.VISION_END, tiny.IMAGE, tiny.VIDEO
    tokenizer = train_tokenizer(["1 2 3 4 5 6 7 8 9 0"], 300, special if "vision" in sizes else ())
    if "vision" in sizes:
        tokenizer.chat_template = tiny.CHAT_TEMPLATE
    return tokenizer


def model_config(sizes: dict[str, Any], tokenizer: Any) -> Any:
    from transformers import Qwen2_5_VLConfig, Qwen2Config

    text = {
        "vocab_size": sizes["vocabulary"],
        "hidden_size": sizes["width"],
        "intermediate_size": sizes["feed_forward"],
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["heads"],
        "num_key_value_heads": sizes["kinds"],
        "max_position_embeddings": 4096,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
        "pad_token_id": tokenizer.pad_token_id,
    }
    tied = sizes.get("tied", True)
    if "vision" not in sizes:
        return Qwen2Config(**text, tie_word_embeddings=tied)
    vision = sizes["vision"]
    head = sizes["width"] // sizes["heads"] // 2
    special = tokenizer.convert_tokens_to_ids([tiny.VISION_START, tiny.VISION_END, tiny.IMAGE, tiny.VIDEO])
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    return Qwen2_5_VLConfig(
        text_config={
            **text,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [head - 20, 10, 10]},
        },
        vision_config={
            "depth": vision["layers"],
            "hidden_size": vision["width"],
            "intermediate_size": vision["feed_forward"],
            "num_heads": vision["heads"],
            "patch_size": 14,
            "window_size": 112,
            "fullatt_block_indexes": [vision["layers"] - 1],
            "out_hidden_size": sizes["width"],
        },
        tie_word_embeddings=tied,
        **dict(zip(names, special, strict=True)),
    )


def make_model(folder: Path, sizes: dict[str, Any]) -> None:
    from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2ForCausalLM
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer = tokenizer_of(sizes)
    tokenizer.save_pretrained(folder)
    kind = Qwen2_5_VLForConditionalGeneration if "vision" in sizes else Qwen2ForCausalLM
    kind(model_config(sizes, tokenizer)).save_pretrained(folder)
    if "vision" in sizes:
        Qwen2VLImageProcessorPil(patch_size=14).save_pretrained(folder)


def small_model(folder: Path, of: dict[str, Any]) -> None:
    """Write a small model of the configuration's kind (text or vision)."""
    sizes = {"width": 128, "layers": 2, "feed_forward": 64, "heads": 2, "kinds": 1, "vocabulary": 512}
    vision = {"vision": {"width": 64, "layers": 2, "feed_forward": 64, "heads": 2}} if "images" in of else {}
    make_model(folder, {**sizes, **vision})


class MadeUp(GroupDataModule, PromptSource):
    """Prompts of random digits, each a token, or with random images.

    Args:
        prompts_per_update: prompts.
        length: digits per prompt.
        images: per prompt.
        size: pixels along an image's sides.
    """

    def __init__(self, prompts_per_update: int, length: int = 8, images: int = 0, size: int = 0) -> None:
        super().__init__(prompts_per_update)
        self.length, self.images, self.size = length, images, size

    def source(self, split: Split) -> PromptSource:
        return self

    def __len__(self) -> int:
        return 1024

    def groups(self, index: Tensor) -> PromptGroups:
        return PromptGroups(index, {"prompt": [self._prompt(number) for number in index.tolist()]})

    def _prompt(self, number: int) -> Any:
        draw = np.random.default_rng(number)
        text = "".join(map(str, draw.integers(0, 10, self.length)))
        if not self.images:
            return text
        shape = (self.size, self.size, 3)
        parts = [{"type": "image", "image": draw.integers(0, 256, shape, np.uint8)} for _ in range(self.images)]
        return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def made_up(completions: list[Any]) -> list[float]:
    return [float(sum(map(ord, str(text))) % 7) for text in completions]


def configuration(model: Path, of: dict[str, Any]) -> dict[str, Any]:
    policy: dict[str, Any] = {"model": str(model), "gradient_checkpointing": of.get("checkpointing", False)}
    policy["share_prompts"] = of.get("share_prompts", True)
    if "rank" in of:
        policy["lora"] = {"rank": of["rank"]}
    kind = "VisionLanguagePolicy" if "images" in of else "CausalLMPolicy"
    length = of["answer_tokens"]
    optimization = {name: of[name] for name in ("kl_weight", "micro_batch_size", "minibatch_size") if name in of}
    optimizer = {"class_path": "torch.optim.AdamW", "init_args": {"lr": 1e-5}}
    estimator: dict[str, Any] = {"class_path": "lightning_cgrpo.ScalarizedAdvantages"}
    if "critic" in of:
        lora = {"lora": {"rank": of["critic"]["rank"]}} if "rank" in of["critic"] else {}
        reader = {"class_path": f"lightning_cgrpo.{kind}", "init_args": {"model": str(model), **lora}}
        learning = {"epochs": 1, "warmup": 0, "micro_batch_size": of.get("micro_batch_size")}
        estimator = {
            "class_path": "lightning_cgrpo.LagrangianGAE",
            "init_args": {
                "critic": {"class_path": "lightning_cgrpo.LanguageCritic", "init_args": {"network": reader}},
                "optimizer": optimizer,
                "learning": learning,
            },
        }
    return {
        "trainer": {"accelerator": "cpu"},
        "model": {
            "class_path": "benchmarks.plan.Watched",
            "init_args": {
                "policy": {"class_path": f"lightning_cgrpo.{kind}", "init_args": policy},
                "sampler": {
                    "class_path": "lightning_cgrpo.GenerationSampler",
                    "init_args": {"max_new_tokens": length, "min_new_tokens": length},
                },
                "task": {
                    "class_path": "lightning_cgrpo.FunctionTask",
                    "init_args": {"signals": {"made_up": "benchmarks.plan_models.made_up"}},
                },
                "objective": {"reward": "made_up"},
                "estimator": estimator,
                "optimizer": optimizer,
                "optimization": optimization,
                "group_size": of["group"],
            },
        },
        "data": {
            "class_path": "benchmarks.plan_models.MadeUp",
            "init_args": {
                "prompts_per_update": of["prompts"],
                "length": of.get("prompt_tokens", 8),
                "images": of.get("images", 0),
                "size": of.get("image_size", 0),
            },
        },
    }
