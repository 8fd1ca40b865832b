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
        allow_abbrev=False,
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="where to write it; must be new or empty")
    options = parser.parse_args(argv)
    # Imported here, because --help must not wait for torch.
    from lightning_cgrpo.policies.tiny.text import make_tiny_model

    try:
        path = make_tiny_model(options.directory)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    size = sum(file.stat().st_size for file in path.iterdir())
    print(f"Wrote a model with random weights to {path} ({size / 1e6:.1f} MB).")
