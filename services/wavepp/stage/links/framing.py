"""What both transports share about bytes: goodbyes and flat views of payloads. Prologues: wavepp.core.wire.prologue."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import msgpack

from wavepp.core.errors import InvalidInputError, PeerProtocolError

if TYPE_CHECKING:
    from typing_extensions import Buffer


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


def flat_views(payload: Sequence[Buffer]) -> tuple[memoryview, ...]:
    """One-dimensional byte views of the buffers that are not empty. Raises InvalidInputError.

    No copy is made. A buffer that is not C-contiguous is the caller's mistake: copying it here would hide a
    cost that belongs to whoever made it so.
    """
    views = []
    for number, buffer in enumerate(payload):
        view = memoryview(buffer)
        if not view.c_contiguous:
            raise InvalidInputError(f"payload buffer {number} is not C-contiguous; copy it before sending")
        if view.nbytes:
            views.append(view.cast("B"))
    return tuple(views)


def writable_view(buffer: Buffer, nbytes: int) -> memoryview:
    """A flat view to receive into. Raises InvalidInputError unless it is writable and exactly `nbytes` long."""
    view = memoryview(buffer)
    if view.readonly or not view.c_contiguous or view.nbytes != nbytes:
        raise InvalidInputError(
            f"allocate() must return a writable C-contiguous buffer of {nbytes} bytes; it returned "
            f"{view.nbytes} bytes, readonly={view.readonly}, contiguous={view.c_contiguous}"
        )
    return view.cast("B")
