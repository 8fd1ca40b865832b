"""The command ``tiny-model``: a tiny language model with random weights."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command ``tiny-model``."""
    parser = argparse.ArgumentParser(
        prog="python -m lightning_cgrpo tiny-model",
        description="Make a tiny language model with random weights, as a directory that transformers loads.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="where to write it; must be new or empty")
    parser.add_argument("--hidden-size", type=int, default=64, help="width, a multiple of 8")
    parser.add_argument("--layers", type=int, default=2, help="number of layers")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    parser.add_argument("--texts", metavar="FILE", type=Path, help="a text to train the tokenizer on, line by line")
    options = parser.parse_args(argv)
    # Imported here, because --help must not wait for torch.
    from lightning_cgrpo.policies.tiny.text import make_tiny_model

    try:
        texts = options.texts and options.texts.read_text(encoding="utf-8-sig").splitlines()
        path = make_tiny_model(options.directory, texts, options.hidden_size, options.layers, seed=options.seed)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    size = sum(file.stat().st_size for file in path.iterdir())
    print(f"Wrote a model with random weights to {path} ({size / 1e6:.1f} MB).")
