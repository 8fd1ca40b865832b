"""Thoughts on demonstrated drives, written by a larger model on a server; see docs/driving_data.md."""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.settings.configuration import Config, ConfigError, get

if TYPE_CHECKING:
    from lightning_cgrpo.core.json_client import JSONClient
    from lightning_cgrpo.tasks.driving.scene_prompts import DrivingDemonstrations

INSTRUCTION = (
    "The pictures show what a car's driver sees. In the next seconds a good driver takes these positions, in meters "
    "ahead and to the left of the car: {trajectory}\n"
    "Say in two to four sentences what in the scene leads the driver to this: the road, other road users, traffic "
    "lights, speed. Write as the driver, before driving. Mention no numbers of the positions, and use no brackets."
)
KEY = "OPENAI_API_KEY"
TRIES = 3
"""Requests for a text that fits, each with another seed."""
BATCH = 32
"""Scenes asked for at a time; an interruption loses so many texts at most."""
TIMEOUT = 600.0
"""Seconds for a request."""
COMPLETIONS = "/v1/chat/completions"


def main(argv: Sequence[str] | None = None) -> None:
    """Write a file of thoughts for `WrittenThoughts`."""
    from lightning_cgrpo.cli.arguments import read_arguments

    parser = argparse.ArgumentParser(
        prog="python -m examples.driving_thoughts",
        description="Have a larger model write the thoughts before each demonstrated drive of a fine-tuning stage.",
        usage="%(prog)s -c FILE... [--KEY=VALUE]... --server URL --writer MODEL --out FILE",
        epilog="The server speaks the protocol of /v1/chat/completions, as `vllm serve` does, and gets the variable "
        f"{KEY} of the environment as its key. The same command continues after an interruption. Fine-tune with "
        "--data.thoughts=WrittenThoughts --data.thoughts.path=FILE. See docs/driving_data.md.",
        allow_abbrev=False,
    )
    parser.add_argument("--server", metavar="URL", required=True, help="address, such as http://localhost:8000")
    parser.add_argument("--writer", metavar="MODEL", required=True, help="name of the model on the server")
    parser.add_argument("--out", metavar="FILE", type=Path, required=True, help="a .jsonl file, continued if it exists")
    parser.add_argument(
        "--instruction", metavar="FILE", type=Path, help="a text with {trajectory}, which replaces the instruction"
    )
    parser.add_argument("--max_tokens", metavar="N", type=int, default=512, help="longest text (default: 512)")
    options, rest = parser.parse_known_args(argv)
    instruction = INSTRUCTION if options.instruction is None else options.instruction.read_text(encoding="utf-8-sig")
    for holds, what, value in (
        (options.out.suffix == ".jsonl", "--out to be a .jsonl file", options.out),
        ("{trajectory}" in instruction, "--instruction to be a text with {trajectory}", options.instruction),
    ):
        if not holds:
            raise ConfigError(f"Expected {what}, but got {value}.")
    config, _ = read_arguments("fit", rest)
    # Imported here, because --help must not wait for torch.
    from lightning_cgrpo.core.json_client import JSONClient

    client = JSONClient(options.server, TIMEOUT, "a server of chat completions", os.environ.get(KEY))
    request = {"model": options.writer, "max_tokens": options.max_tokens}
    _write(_demonstrations(config), client, request, instruction, options.out)


def _messages(prompt: Sequence[dict[str, Any]], instruction: str, trajectory: str) -> list[dict[str, Any]]:
    """A scene's prompt, with the instruction at the end of its last message."""
    asked = {"type": "text", "text": instruction.replace("{trajectory}", trajectory)}
    *before, last = [_sent(message) for message in prompt]
    return [*before, {**last, "content": [*last["content"], asked]}]


def _text(reply: dict[str, Any], client: JSONClient) -> str | None:
    """The text of a reply, or None if it has brackets or was cut off."""
    from lightning_cgrpo.tasks.driving.thoughts import readable

    try:
        choice = reply["choices"][0]
        text = str(choice["message"]["content"] or "").strip()
    except (LookupError, TypeError):
        raise UserError(f"Expected choices with messages from {client.address}, but got {str(reply)[:200]}.") from None
    return text if text and choice.get("finish_reason") != "length" and readable(text) else None


def _sent(message: dict[str, Any]) -> dict[str, Any]:
    """A message in the protocol's form, with images as PNG in data URLs."""
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {**message, "content": [_image(part["image"]) if part["type"] == "image" else part for part in parts]}


def _image(image: Any) -> dict[str, Any]:
    from PIL import Image

    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def _demonstrations(config: Config) -> DrivingDemonstrations:
    """The training demonstrations of a fine-tuning stage, without thoughts."""
    from lightning.pytorch import LightningDataModule

    from lightning_cgrpo.cli.loading import instantiate
    from lightning_cgrpo.cli.preparation import import_names
    from lightning_cgrpo.datamodules import NavsimDemonstrationsDataModule

    import_names()
    arguments = {name: value for name, value in (get(config, "data.init_args") or {}).items() if name != "thoughts"}
    data = instantiate({"data": {**config["data"], "init_args": arguments}}, data=LightningDataModule)["data"]
    if not isinstance(data, NavsimDemonstrationsDataModule):
        raise UserError(
            f"Expected data with demonstrated drives, but got {type(data).__name__}, try -c configs/navsim_sft.yaml."
        )
    return data.demonstrations()


def _write(
    source: DrivingDemonstrations, client: JSONClient, request: dict[str, Any], instruction: str, out: Path
) -> None:
    """Append a line for each scene that has none."""
    import torch
    from rich.progress import track

    written = _continued(out)
    missing = [number for number in range(len(source)) if source.scene(number).name not in written]
    left_out: list[str] = []
    with out.open("a", encoding="utf-8") as file:
        for first in track(range(0, len(missing), BATCH), "Thoughts", transient=True):
            columns = source.groups(torch.tensor(missing[first : first + BATCH])).columns
            asked = {
                scene.name: _messages(prompt, instruction, completion)
                for scene, prompt, completion in zip(
                    columns["scene"], columns["prompt"], columns["completion"], strict=True
                )
            }
            for seed in range(TRIES):
                bodies = [{**request, "messages": messages, "seed": seed} for messages in asked.values()]
                for scene, reply in zip(list(asked), client.post_all(COMPLETIONS, bodies), strict=True):
                    if (text := _text(reply, client)) is not None:
                        file.write(json.dumps({"scene": scene, "text": text}, ensure_ascii=False) + "\n")
                        del asked[scene]
                file.flush()
            left_out += asked
    print(f"{out}: thoughts on {len(_continued(out))} scenes.")
    if left_out:
        raise UserError(
            f"Expected texts without brackets, within --max_tokens, on all scenes, but got none on {len(left_out)} of "
            f"{len(source)} in {TRIES} tries each, the first '{left_out[0]}', try another --instruction or "
            "more --max_tokens; the same command asks for these alone."
        )


def _continued(out: Path) -> set[str]:
    """Scenes in an earlier part of the file; a line that was cut off by an interruption is removed."""
    if not out.exists():
        return set()
    lines = out.read_bytes().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        with out.open("r+b") as file:
            file.truncate(sum(map(len, lines[:-1])))
        lines = lines[:-1]
    from lightning_cgrpo.core.prompts.records import read_records

    return {record.text("scene") for record in read_records(out)} if lines else set()


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"driving_thoughts: error: {error}")
