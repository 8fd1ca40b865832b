"""Uploads: what reaches the hub, and refusals in one line."""

import shutil

import huggingface_hub
import pytest

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.policies.upload import open_repository, upload


def test_a_folder_without_unfinished_files(tmp_path, monkeypatch, capsys):
    folder, hub = tmp_path / "model", tmp_path / "hub"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.unfinished").mkdir()
    (folder / "model.unfinished" / "config.json").write_text("{")

    def copied(repo_id, folder_path, ignore_patterns):
        shutil.copytree(folder_path, hub / repo_id, ignore=shutil.ignore_patterns(ignore_patterns))
        return f"https://hub/{repo_id}"

    monkeypatch.setattr(huggingface_hub, "upload_folder", copied)
    upload(folder, "me/mine")
    assert [path.name for path in (hub / "me" / "mine").iterdir()] == ["config.json"]
    assert "https://hub/me/mine" in capsys.readouterr().out


def test_a_new_repository_is_private(monkeypatch):
    asked = []
    monkeypatch.setattr(huggingface_hub, "create_repo", lambda name, **options: asked.append((name, options)))
    open_repository("me/mine")
    assert asked == [("me/mine", {"private": True, "exist_ok": True})]


@pytest.mark.parametrize("name", ["another/mine", "no such name"])
def test_refusals_name_the_repository(monkeypatch, name):
    nobody = huggingface_hub.HfApi(endpoint="http://127.0.0.1:9", token="hf_x")
    monkeypatch.setattr(huggingface_hub, "create_repo", nobody.create_repo)
    with pytest.raises(UserError, match=rf"but got '{name}' .*hf auth login") as caught:
        open_repository(name)
    assert "\n" not in str(caught.value)
