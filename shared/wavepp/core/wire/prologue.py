"""The 64 bytes before every frame on a link, and the error for frames that are not valid.

Layout, little-endian:

    offset  bytes  field
         0      4  magic, "WVPP"
         4      2  version
         6      2  kind
         8      4  bytes of the header that follows
        12      4  CRC-32 of the header
        16      8  bytes of the payload that follows the header
        24     36  reserved, zero
        60      4  CRC-32 of the 60 bytes before

All of it is verified before anything is allocated for the frame. The checksums find faults, not forgers: who
may connect is decided elsewhere.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from wavepp.core.errors import InvalidInputError, PeerProtocolError
from wavepp.core.limits import FRAME_HEADER_BYTES_MAX, FRAME_PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAGIC: Final = b"WVPP"
VERSION: Final = 1
PROLOGUE_BYTES: Final = 64
CONTROL_HEADER_BYTES_MAX: Final = 16 * 1024
"""Headers of all kinds but WAVE, which has FRAME_HEADER_BYTES_MAX."""

_RESERVED: Final = bytes(36)
_FIELDS: Final = struct.Struct("<4sHHIIQ36s")
_CHECKSUM: Final = struct.Struct("<I")


class FrameError(PeerProtocolError):
    """A frame breaks the protocol. The link is torn down: what follows cannot be trusted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class FrameKind(IntEnum):
    """What a frame is for. Only a WAVE may have a payload."""

    HELLO = 1
    WAVE = 2
    HEARTBEAT = 3
    CREDIT = 4
    BYE = 5


_KINDS: Final = {int(kind): kind for kind in FrameKind}


@dataclass(frozen=True, slots=True)
class Prologue:
    """A frame's first 64 bytes."""

    kind: FrameKind
    header_bytes: int
    header_crc32: int
    payload_bytes: int

    @classmethod
    def of(cls, kind: FrameKind, header: bytes, payload_bytes: int = 0) -> Prologue:
        """The prologue of a frame with this header; `InvalidInputError` when it would be refused."""
        reason = _out_of_bounds(kind, len(header), payload_bytes)
        if reason:
            raise InvalidInputError(f"{reason}; make the wave or the message smaller")
        return cls(kind, len(header), zlib.crc32(header), payload_bytes)

    def pack(self) -> bytes:
        fields = _FIELDS.pack(
            MAGIC, VERSION, self.kind, self.header_bytes, self.header_crc32, self.payload_bytes, _RESERVED
        )
        return fields + _CHECKSUM.pack(zlib.crc32(fields))

    @classmethod
    def unpack(cls, data: Buffer) -> Prologue:
        """Verify and read exactly 64 bytes; `FrameError` when any of them is wrong."""
        view = memoryview(data).cast("B")
        if len(view) != PROLOGUE_BYTES:
            raise FrameError(f"prologue of {len(view)} bytes; it has {PROLOGUE_BYTES}")
        magic, version, kind, header_bytes, header_crc32, payload_bytes, reserved = _FIELDS.unpack_from(view)
        if magic != MAGIC:
            raise FrameError(f"magic is {magic!r}, not {MAGIC!r}: the peer does not speak this protocol")
        (checksum,) = _CHECKSUM.unpack_from(view, _FIELDS.size)
        if checksum != zlib.crc32(view[: _FIELDS.size]):
            raise FrameError("the prologue's checksum is wrong: it was damaged on the way")
        if version != VERSION:
            raise FrameError(f"version {version}; this side speaks {VERSION}: run the same release on all stages")
        known = _KINDS.get(kind)
        if known is None:
            raise FrameError(f"frame kind {kind} is unknown")
        if reserved != _RESERVED:
            raise FrameError("reserved bytes of the prologue are not zero")
        reason = _out_of_bounds(known, header_bytes, payload_bytes)
        if reason:
            raise FrameError(reason)
        return cls(known, header_bytes, header_crc32, payload_bytes)

    def verify_header(self, header: Buffer) -> None:
        """`FrameError` unless `header` is the one that the prologue announced."""
        view = memoryview(header).cast("B")
        if len(view) != self.header_bytes:
            raise FrameError(f"header of {len(view)} bytes; {self.header_bytes} were announced")
        if zlib.crc32(view) != self.header_crc32:
            raise FrameError("the header's checksum is wrong: it was damaged on the way")


def _out_of_bounds(kind: FrameKind, header_bytes: int, payload_bytes: int) -> str:
    """What is wrong with the lengths; empty when nothing is."""
    wave = kind is FrameKind.WAVE
    header_max = FRAME_HEADER_BYTES_MAX if wave else CONTROL_HEADER_BYTES_MAX
    payload_max = FRAME_PAYLOAD_BYTES_MAX if wave else 0
    if header_bytes > header_max:
        return f"{kind.name} header of {header_bytes} bytes; at most {header_max}"
    if not 0 <= payload_bytes <= payload_max:
        return f"{kind.name} payload of {payload_bytes} bytes; at most {payload_max}"
    return ""
