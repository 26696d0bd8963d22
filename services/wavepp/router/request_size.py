"""What a request may hold beside its prompt, checked before it is decoded.

Two bytes are a message within a message, and take a hundred and more once decoded: a request within the limit of gRPC's
messages could take gigabytes, and stop the router for as long as it takes to fill them.
"""

from __future__ import annotations

from typing import Final

from wavepp.core.errors import InvalidInputError
from wavepp.v1 import prefill_pb2

UNCHECKED_BYTES_MAX: Final = 256 * 1024
"""Most requests; they cost at most 50 ms, whatever they are."""
BESIDE_PROMPT_BYTES_MAX: Final = 4 * 1024 * 1024
"""100,000 tokens that an earlier call has given (`generated`)."""
FIELDS_MAX: Final = 131_072

_PROMPT: Final = frozenset(f.number for f in prefill_pb2.PrefillRequest.DESCRIPTOR.oneofs_by_name["prompt"].fields)


def check_request(raw: bytes) -> None:
    """Raises InvalidInputError when an encoded PrefillRequest has too much beside its prompt, or too many fields."""
    if len(raw) <= UNCHECKED_BYTES_MAX:
        return
    at = beside = 0
    for _ in range(FIELDS_MAX):
        if at >= len(raw):
            return
        began = at
        tag, at = _varint(raw, at)
        match tag & 7:
            case 0:  # a varint
                _, at = _varint(raw, at)
            case 1:  # eight bytes
                at += 8
            case 2:  # a length, and so much
                size, at = _varint(raw, at)
                at += size
            case 5:  # four bytes
                at += 4
        if at > len(raw):
            return  # torn: the decoder will say so
        if tag >> 3 not in _PROMPT:
            beside += at - began
        if beside > BESIDE_PROMPT_BYTES_MAX:
            raise InvalidInputError(
                f"the request has more than {BESIDE_PROMPT_BYTES_MAX} bytes beside its prompt, the limit"
            )
    raise InvalidInputError(f"the request has more than {FIELDS_MAX} fields and generated tokens, the limit")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """The number there and where it ends."""
    value = shift = 0
    for byte in raw[at : at + 10]:
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    return value, at
