"""Uploads of models to the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning_cgrpo.checkpoints.files import UNFINISHED
from lightning_cgrpo.errors import UserError, first_line


def open_repository(name: str) -> None:
    """Create a private repository of a model on the hub, unless it exists, so that a refusal comes before the work.

    Raises:
        UserError: the hub refuses, or does not answer.
    """
    from huggingface_hub import create_repo

    with _refusals(name):
        create_repo(name, private=True, exist_ok=True)


def upload(folder: Path, name: str) -> None:
    """Upload a model's folder as a commit.

    Raises:
        UserError: the hub refuses, or does not answer.
    """
    from huggingface_hub import upload_folder

    with _refusals(name):
        # The folder may hold an unfinished model of a killed run.
        done = upload_folder(repo_id=name, folder_path=folder, ignore_patterns=f"*{UNFINISHED}*")
    print(f"Uploaded {folder} to {done}.")


@contextmanager
def _refusals(name: str) -> Iterator[None]:
    from httpx2 import HTTPError
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    try:
        yield
    except (HFValidationError, HfHubHTTPError, LocalTokenNotFoundError, HTTPError, OSError) as error:
        raise UserError(
            f"Expected push_to_hub to be a repository of the Hugging Face hub that you may write, but got '{name}' "
            f"({first_line(error)}), try `hf auth login`."
        ) from error
