"""Uploads: what reaches the hub, and refusals in one line."""

import http.server
import json
import shutil
import threading
from types import SimpleNamespace

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


@pytest.fixture
def hub(monkeypatch):
    """A server that creates repositories of one user, as the hub would."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body)
            allowed = body.get("organization") == "me"
            self.send_response(200 if allowed else 403)
            self.end_headers()
            self.wfile.write(
                json.dumps({"url": "https://huggingface.co/me/mine"} if allowed else {"error": "Forbidden"}).encode()
            )

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        api = huggingface_hub.HfApi(endpoint=address, token="hf_x")
        monkeypatch.setattr(huggingface_hub, "create_repo", api.create_repo)
        yield SimpleNamespace(asked=asked)
        server.shutdown()


def test_a_new_repository_is_private(hub):
    open_repository("me/mine")
    assert hub.asked[0]["name"] == "mine" and str(hub.asked[0].get("visibility", hub.asked[0].get("private"))) in (
        "private",
        "True",
    )


@pytest.mark.parametrize("name", ["another/mine", "no such name"])
def test_refusals_name_the_repository(hub, name):
    with pytest.raises(UserError, match=rf"but got '{name}' .*hf auth login") as caught:
        open_repository(name)
    assert "\n" not in str(caught.value)
