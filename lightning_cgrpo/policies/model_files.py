"""The places of a model's files, and their fingerprint."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lightning_cgrpo.core.json_client import hub_answers
from lightning_cgrpo.core.paths import expand_path
from lightning_cgrpo.policies.adapters import ADAPTERS
from lightning_cgrpo.policies.policy import Origin

PACKAGED = Path(__file__).parents[1] / "models"
PREFIX = "packaged:"


def find_directory(name: str, revision: str | None = None) -> Path | None:
    """Local directory of a model (the cache if the hub does not answer); None for a model of the hub.

    Raises:
        OSError: the model is neither here nor reachable.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    if name.startswith(PREFIX):
        models = sorted(PREFIX + folder.name for folder in PACKAGED.iterdir())
        if name not in models:
            raise FileNotFoundError(f"the package has the models {', '.join(models)}")
        return PACKAGED / name.removeprefix(PREFIX)
    path = expand_path(name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise FileNotFoundError("the directory has no config.json")
        return path
    if path.suffix == ".gguf":
        convert = f"AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file='{path.name}').save_pretrained(DIRECTORY)"
        raise FileNotFoundError(f"convert GGUF: {convert}, and its tokenizer")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise FileNotFoundError("there is no such directory")
    if hub_answers():
        return None
    try:  # the cache at once, because the hub's client would retry for minutes first
        return Path(snapshot_download(name, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        raise FileNotFoundError("there is no such directory, and the hub does not answer") from None


def find_model_folder(name: str, revision: str | None = None) -> Path | None:
    """Local directory of a model or of adapters, as `find_directory`."""
    folder = expand_path(name)
    if (folder / ADAPTERS).is_file():
        return folder
    return find_directory(name, revision)


def origin(name: str, revision: str | None = None) -> Origin:
    """Origin of a model or of adapters; models of the hub must be in the cache."""
    from huggingface_hub import snapshot_download

    folder = find_model_folder(name, revision)
    if folder is None:
        folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
    return Origin(name, str(folder.resolve()), fingerprint(folder))


def fingerprint(folder: Path) -> str:
    """12 hexadecimal digits from names and content of a directory's .safetensors files, or of one file."""
    files = [folder]
    if folder.is_dir():
        files = sorted(folder.glob("*.safetensors"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode())
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:12]
