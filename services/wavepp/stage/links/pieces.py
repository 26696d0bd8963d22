"""How a payload is cut for a message-based transport. Pure; both ends compute the same cuts from the total size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

PIECE_BYTES: Final = 4 * 1024 * 1024
"""Long enough that the cost of one message does not count, short enough to be a sign of life on a slow network."""


def piece_sizes(nbytes: int, piece_bytes: int = PIECE_BYTES) -> Iterator[int]:
    """Sizes of the pieces of a payload of `nbytes`: all `piece_bytes` long but for the last."""
    for start in range(0, nbytes, piece_bytes):
        yield min(piece_bytes, nbytes - start)


def pieces(buffers: Sequence[memoryview], piece_bytes: int = PIECE_BYTES) -> Iterator[memoryview]:
    """The joined buffers (flat byte views), cut at multiples of `piece_bytes`.

    A piece that lies in one buffer is a view of it; one that straddles buffers is a copy.
    """
    parts: list[memoryview] = []
    room = piece_bytes
    for buffer in buffers:
        at = 0
        while at < buffer.nbytes:
            part = buffer[at : at + room]
            parts.append(part)
            at += part.nbytes
            room -= part.nbytes
            if room == 0:
                yield _join(parts)
                parts, room = [], piece_bytes
    if parts:
        yield _join(parts)


def _join(parts: list[memoryview]) -> memoryview:
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
