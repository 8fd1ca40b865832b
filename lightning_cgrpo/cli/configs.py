"""The command ``configs``: the packaged configurations, and copies to start from."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path

from lightning_cgrpo.core.errors import UserError, did_you_mean
from lightning_cgrpo.settings.configuration import PACKAGED, read_file

NAMES = 34
"""Width of the column of names."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m lightning_cgrpo configs",
        description="List the packaged configurations, or copy one into this folder.",
        allow_abbrev=False,
    )
    parser.add_argument("--copy", metavar="NAME", help="write NAME.yaml here, with the file that its base names")
    name = parser.parse_args(argv).copy
    if name is None:
        _list_configurations()
        return
    names = {str(file.relative_to(PACKAGED).with_suffix("")): file for file in PACKAGED.rglob("*.yaml")}
    wanted = name.removeprefix("configs/").removesuffix(".yaml")
    if wanted not in names:
        raise UserError(f"There is no packaged configuration '{name}'.{did_you_mean(wanted, names)}")
    copy_configuration(names[wanted])


def _list_configurations() -> None:
    """Print the names and purposes of the packaged configurations, by folder."""
    folder = None
    for file in sorted(PACKAGED.rglob("*.yaml"), key=lambda file: (len(file.parts), file)):
        if file.parent != folder:
            folder = file.parent
            if folder != PACKAGED:
                print()
            print(f"{Path('configs', folder.relative_to(PACKAGED))}/")
        print(f"  {file.stem:<{NAMES}} {_read_purpose(file)}".rstrip())


def copy_configuration(source: Path) -> None:
    """Copy a configuration and the files of its `base` into this folder; `base` names a file beside.

    Raises:
        UserError: a file of that name exists.
    """
    copy_to = Path(source.name)
    if copy_to.exists():
        raise UserError(f"Expected no file '{copy_to}' here, but there is one, try another folder.")
    text = source.read_text(encoding="utf-8")
    base = read_file(source).get("base")
    if isinstance(base, str) and (source.parent / base).is_file():
        base_name = Path(base).name
        text = text.replace(f"base: {base}", f"base: {base_name}")
        if not Path(base_name).exists():
            copy_configuration(source.parent / base)
    copy_to.write_text(text, encoding="utf-8")
    print(f"Wrote {copy_to}.")


def _read_purpose(file: Path) -> str:
    """The first sentence of a configuration's first comment that is no command."""
    comments = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        comments.append(line.lstrip("# "))
    text = " ".join(line for line in comments if not line.startswith(("fit -c", "python -m")))
    width = max(shutil.get_terminal_size().columns - NAMES - 3, 20)
    return textwrap.shorten(text.partition(". ")[0].rstrip("."), width, placeholder=" …")
