"""Requests in JSON over HTTP."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

from lightning_cgrpo.errors import UserError, expect

PAUSES = (1.0, 4.0)
"""Seconds before the second and the third try."""
BUSY = 429, 502, 503, 504


class JSONClient:
    """Sends requests to a server such as http://localhost:8000.

    Args:
        timeout: seconds until a request fails.
        server: what the server is, for errors.
        key: a secret, sent as a bearer token.
    """

    def __init__(self, address: str, timeout: float, server: str, key: str | None = None) -> None:
        expect(address.startswith(("http://", "https://")), "address", "a URL with http:// or https://", address)
        expect(timeout > 0, "timeout", "greater than 0", timeout)
        self.address = address.rstrip("/")
        self.timeout, self.server = timeout, server
        self._headers = {"Content-Type": "application/json"} | (
            {} if key is None else {"Authorization": f"Bearer {key}"}
        )

    def get(self, path: str) -> dict[str, Any]:
        return self._ask(path, None)

    def post(self, path: str, body: dict[str, Any], again: bool = False) -> dict[str, Any]:
        """Send `body`; return the server's JSON object, {} for an empty answer.

        Args:
            again: try up to three times if the connection breaks or the server is busy.
        """
        for pause in PAUSES if again else ():
            try:
                return self._ask(path, body)
            except _PassingError:
                time.sleep(pause)
        return self._ask(path, body)

    def _ask(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, self._headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            raise self._refused(path, error.code, error.read()) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, TimeoutError):
                raise UserError(
                    f"Expected an answer from {self.address}{path} within {self.timeout:g} s, but got none, try a "
                    "larger timeout."
                ) from None
            raise _PassingError(
                f"Expected {self.server} at {self.address}, but got no answer to {path} ({reason}), try starting it "
                "there, or another address."
            ) from None
        try:
            answer = json.loads(text) if text else {}
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise UserError(
                f"Expected a JSON object from {self.address}{path}, but got '{_start(text)}', try the address of "
                f"{self.server}."
            )
        return answer

    def _refused(self, path: str, code: int, text: bytes) -> UserError:
        try:
            said = json.loads(text)["error"]["message"]
        except (ValueError, LookupError, TypeError):
            said = _start(text)
        kind = _PassingError if code in BUSY else UserError
        hint = ", try VLLM_SERVER_DEV_MODE=1 before `vllm serve`" if code == 404 and not path.startswith("/v1") else ""
        return kind(f"Expected {self.address}{path} to accept the request, but got {code} ({said}){hint}.")


class _PassingError(UserError):
    """A fault that may pass on another try."""


def _start(text: bytes) -> str:
    return " ".join(text[:200].decode(errors="replace").split())
