"""A quick test whether the Hugging Face hub answers, because its client retries for half a minute."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit
from urllib.request import getproxies


def hub_answers() -> bool:
    """True if a connection succeeds within 5 seconds. Not tried offline (false) and behind a proxy (true)."""
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
