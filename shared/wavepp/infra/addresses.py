"""Addresses as people write them. Imports nothing that costs a command its start."""

from __future__ import annotations

import re
from typing import Final

_COLONS_AND_DIGITS: Final = re.compile(r"[0-9A-Fa-f:.]*(%.*)?")


def join_host_port(host: str, port: int) -> str:
    """host:port; an IPv6 address comes without brackets and gets them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def brackets_hint(address: str) -> str:
    """What to add to the refusal of `address` when it is an IPv6 address without brackets, with a port or without;
    empty for all others.
    """
    if address.count(":") < 2 or not _COLONS_AND_DIGITS.fullmatch(address):
        return ""
    return "; an IPv6 address needs brackets, as in [::1]:8470"
