"""Whether the Hugging Face hub can be asked, without its client's half minute of trying."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit
from urllib.request import getproxies


def hub_answers() -> bool:
    """Whether there is a network; behind a proxy it is assumed."""
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
