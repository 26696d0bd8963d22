"""The last message on a link: why this side ends it."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgpack

from wavepp.core.errors import PeerProtocolError

BYE_BYTES_MAX: Final = 1024
_BYE_TEXT_MAX: Final = 512


class ByeCode(IntEnum):
    """Why the other side says goodbye."""

    CLOSED = 0
    REFUSED = 1
    """It does not accept our hello."""
    PROTOCOL = 2
    """It takes something that we sent for a breach of the protocol."""


def encode_bye(code: ByeCode, text: str) -> bytes:
    """At most BYE_BYTES_MAX bytes; a long text is cut."""
    cut = text.encode("utf-8", "replace")[:_BYE_TEXT_MAX].decode("utf-8", "ignore")
    return bytes(msgpack.packb([int(code), cut]))


def decode_bye(raw: bytes) -> tuple[ByeCode, str]:
    """Raises PeerProtocolError when `raw` is not a goodbye."""
    try:
        code, text = msgpack.unpackb(raw, max_str_len=_BYE_TEXT_MAX, max_array_len=2)
        if not isinstance(text, str):
            raise TypeError("the text is not a string")
        return ByeCode(code), text
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise PeerProtocolError(f"goodbye is malformed: {error}") from error
