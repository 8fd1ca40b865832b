"""Requests end in time, in bounded memory, and tell no secrets to other servers."""

import json
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from lightning_cgrpo.core import json_client
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.json_client import JSONClient


@contextmanager
def serving(answer):
    """A server that calls ``answer(connection)`` after each request's head; yields its address and the heads."""
    listener, heads = socket.create_server(("127.0.0.1", 0)), []

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            heads.append(connection.recv(65536).decode())
            threading.Thread(target=reply, args=(connection,), daemon=True).start()

    def reply(connection):
        with connection, suppress(OSError):  # the client has left
            answer(connection)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", heads
    finally:
        listener.close()


def responding(status, body, *headers):
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers])
    return lambda connection: connection.sendall(head.encode() + b"\r\n\r\n" + body)


def client(address, timeout=5.0, key="secret"):
    return JSONClient(address, timeout, "a server", key)


def test_the_key_goes_to_its_server_alone():
    with serving(responding("200 OK", b'{"a": 1}')) as (elsewhere, heads):
        assert client(elsewhere).get("/x") == {"a": 1} and "Authorization: Bearer secret" in heads.pop()
        for code in (301, 302, 307, 308):
            moved = responding(f"{code} Moved", b"", f"Location: {elsewhere}/stolen")
            with serving(moved) as (address, own), pytest.raises(UserError, match=r"moved to .*/stolen"):
                client(address).post("/x", {})
            assert len(own) == 1
        assert heads == []


def test_an_address_is_a_url_whose_password_is_not_shown():
    for address in ("http://a:secret@127.0.0.1:99999", "http://[::1"):
        with pytest.raises(UserError, match="at a URL") as error:
            client(address)
        assert "secret" not in str(error.value)
    with pytest.raises(UserError) as error:
        client("http://a:secret@127.0.0.1:1", key=None).get("/x")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("drip", [b"HTTP/1.1 200 OK\r\nX: " + b"x" * 60, None])
def test_the_timeout_is_of_the_whole_request(drip):
    def slowly(connection):
        if drip is None:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
        for letter in drip or b"{" * 100:
            connection.sendall(bytes([letter]))
            time.sleep(0.05)

    start = time.monotonic()
    with serving(slowly) as (address, _), pytest.raises(UserError, match=r"within 0\.3 s"):
        client(address, 0.3).get("/x")
    assert time.monotonic() - start < 2


@pytest.mark.parametrize("chunked", [True, False])
def test_an_endless_body_is_not_kept(monkeypatch, chunked):
    monkeypatch.setattr(json_client, "LARGEST", 10**6)

    def endlessly(connection):
        kind = b"Transfer-Encoding: chunked" if chunked else b"Connection: close"
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + kind + b"\r\n\r\n")
        while True:
            connection.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n")

    with serving(endlessly) as (address, _), pytest.raises(UserError, match="answer in 1,000,000 bytes"):
        client(address, 30).get("/x")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        ("500 No", json.dumps({"error": {"message": "\x1b]0;owned\x07 no\nmore"}}).encode()),
        ("500 No", b"\x1b[2J no"),
        ("200 OK", b"\x1b[2J no"),
        ("200 OK", b"[" * 10**5),
        ("302 Moved", b""),
    ],
)
def test_errors_are_printable_and_short(status, body):
    with serving(responding(status, body, "Location: http://x/\x1b[2J")) as (address, _):
        with pytest.raises(UserError) as error:
            client(address).get("/x")
        assert str(error.value).isprintable() and len(str(error.value)) < 600


def test_requests_are_limited_at_a_time(monkeypatch):
    monkeypatch.setattr(json_client, "AT_ONCE", 7)
    running, most = [], []

    def count(connection):
        running.append(connection)
        most.append(len(running))
        time.sleep(0.02)
        running.remove(connection)
        responding("200 OK", json.dumps({"number": len(most)}).encode())(connection)

    with serving(count) as (address, heads):
        answers = client(address).post_all("/x", ({"number": number} for number in range(30)))
    assert len(answers) == len(heads) == 30 and 1 < max(most) <= 7


def test_this_machine_is_reached_without_the_environment_s_proxy(monkeypatch):
    """A server that a run starts listens here."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    json_client._client.cache_clear()
    with serving(responding("200 OK", b"{}")) as (address, heads):
        assert client(address).get("/health") == {} and len(heads) == 1
    json_client._client.cache_clear()
