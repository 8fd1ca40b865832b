"""Requests in JSON over HTTP, and whether the hub answers."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import socket
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx

from lightning_cgrpo.core.errors import UserError, expect, first_line, printable
from lightning_cgrpo.core.user_code import event_loop

PAUSES = (1.0, 4.0)
"""Seconds before the second and the third try."""
BUSY = 429, 502, 503, 504
AT_ONCE = 256
"""Requests of a process at once, a vLLM server's default limit."""
LOOPBACK = "all://127.0.0.1", "all://localhost", "all://[::1]"
LARGEST = 2**26
"""Bytes of an answer at most; a long completion with its log-probabilities takes a few million."""


class JSONClient:
    """Sends requests to a server such as http://localhost:8000, and follows no redirects.

    Args:
        timeout: seconds until a request fails, from its start to the answer's last byte.
        server: what the server is, for errors.
        key: a secret, sent as a bearer token.
        remedies: what to try, by a part of the server's message.
    """

    def __init__(
        self,
        address: str,
        timeout: float,
        server: str,
        key: str | None = None,
        remedies: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        expect(address.startswith(("http://", "https://")), "address", "a URL with http:// or https://", address)
        expect(timeout > 0, "timeout", "greater than 0", timeout)
        self._url = address.rstrip("/")
        # For errors, without a name and password.
        self.address = re.sub(r"//[^/]*@", "//", self._url)
        try:
            urlsplit(address).port  # noqa: B018 # raises for a port that no server has
        except ValueError as error:
            raise UserError(f"Expected {server} at a URL, but got {self.address} ({first_line(error)}).") from None
        self.timeout = timeout
        self.server = server
        self.remedies = remedies
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    def get(self, path: str) -> dict[str, Any]:
        return self._wait_for(path, [None], again=False)[0]

    def post(self, path: str, body: dict[str, Any], again: bool = False) -> dict[str, Any]:
        """Send `body`; return the server's JSON object, {} for an empty answer.

        Args:
            again: try up to three times if the connection breaks or the server is busy.
        """
        return self._wait_for(path, [body], again)[0]

    def post_all(self, path: str, bodies: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Send all bodies, `AT_ONCE` at a time and each up to three times; return the answers in their order."""
        return self._wait_for(path, bodies, again=True)

    def _wait_for(self, path: str, bodies: Iterable[dict[str, Any] | None], again: bool) -> list[dict[str, Any]]:
        """The answers to all requests, in their order."""

        async def send_all() -> list[dict[str, Any]]:
            limit = asyncio.Semaphore(AT_ONCE)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._answer(path, body, again, limit)) for body in bodies]
            return [task.result() for task in tasks]

        future = asyncio.run_coroutine_threadsafe(send_all(), event_loop(os.getpid(), "requests"))
        try:
            return future.result()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            future.cancel()

    async def _answer(
        self, path: str, body: dict[str, Any] | None, again: bool, limit: asyncio.Semaphore
    ) -> dict[str, Any]:
        """The answer to one request, after further tries if wanted."""
        pauses = PAUSES if again else ()
        async with limit:
            for pause in pauses:
                try:
                    return await self._try_once(path, body)
                except PassingError:
                    await asyncio.sleep(pause)
            return await self._try_once(path, body)

    async def _try_once(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        method = "GET" if body is None else "POST"
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **self._headers}
        # Read the answer up to its largest size.
        text = bytearray()
        try:
            async with (
                asyncio.timeout(self.timeout),
                _client(os.getpid()).stream(method, self._url + path, content=content, headers=headers) as response,
            ):
                async for part in response.aiter_bytes():
                    text += part
                    if len(text) > LARGEST:
                        raise UserError(f"Expected {self.address}{path} to answer in {LARGEST:,} bytes, but got more.")
        except TimeoutError:
            raise UserError(
                f"Expected an answer from {self.address}{path} within {self.timeout:g} s, but got none, try a larger "
                "timeout."
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise PassingError(
                f"Expected {self.server} at {self.address}, but got no answer to {path} ({printable(error)}), try "
                "starting it there, or another address."
            ) from None
        if response.is_redirect:
            text = bytearray(f"moved to {response.headers.get('Location', '')}".encode())
        if not response.is_success:
            raise self._refusal(path, response.status_code, text)
        # A JSON object, or nothing.
        try:
            answer = json.loads(text) if text else {}
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise UserError(
                f"Expected a JSON object from {self.address}{path}, but got '{_first_words(text)}', try the address of "
                f"{self.server}."
            )
        return answer

    def _refusal(self, path: str, code: int, text: bytearray) -> UserError:
        """The error of a refused request, with the server's message and a remedy, if one is known."""
        try:
            message = printable(json.loads(text)["error"]["message"])
        except (ValueError, LookupError, TypeError, RecursionError):
            message = _first_words(text)
        hint = ""
        for part, remedy in self.remedies.items():
            if part in message:
                hint = f", try {remedy}"
                break
        kind = PassingError if code in BUSY else UserError
        return kind(f"Expected {self.address}{path} to accept the request, but got {code} ({message}){hint}.")


class PassingError(UserError):
    """A fault that may pass on another try."""


@functools.cache
def _client(process: int) -> httpx.AsyncClient:
    """Connections of this process; limits of time are the caller's."""
    # Servers close idle connections after five seconds, and a request that meets the end would fail.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=AT_ONCE, keepalive_expiry=1.0)
    # A proxy of the environment is for other machines.
    return httpx.AsyncClient(timeout=None, limits=limits, mounts=dict.fromkeys(LOOPBACK))


def _first_words(text: bytearray) -> str:
    """The beginning of an answer, for errors."""
    words = text[:200].decode(errors="replace").split()
    return " ".join(printable(word) for word in words)


def hub_answers() -> bool:
    """True if the Hugging Face hub, whose client retries for half a minute, takes a connection within 5 seconds.

    Not tried offline (false) and behind a proxy (true).
    """
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return False
    if getproxies():
        return True
    address = urlsplit(constants.ENDPOINT)
    try:
        socket.create_connection((address.hostname, address.port or 443), timeout=5).close()
    except OSError:
        return False
    return True
