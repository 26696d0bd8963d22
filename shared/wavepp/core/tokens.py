"""Token bytes: the one form in which token ids travel, little-endian u32, four bytes a token.

A prompt of 262,144 tokens is one `bytes` of 1 MiB: it is sliced, hashed and sent without being touched
token by token.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from wavepp.core.errors import InvalidInputError
from wavepp.core.limits import TOKEN_BYTES

TOKEN_ID_MAX: Final = (1 << 32) - 1


def encode_tokens(ids: Iterable[int]) -> bytes:
    """The token bytes of `ids`.

    Raises `InvalidInputError` when an id is not an integer in [0, 2^32).
    """
    listed = list(ids)
    try:
        return struct.pack(f"<{len(listed)}I", *listed)
    except struct.error as error:
        raise InvalidInputError(
            f"a token id is not an integer in [0, {TOKEN_ID_MAX}]: {error}; send the ids of the model's tokenizer"
        ) from error


def decode_tokens(tokens: bytes) -> list[int]:
    """The ids in `tokens` (token bytes). Raises `InvalidInputError` on a torn last token."""
    return list(struct.unpack(f"<{token_count(tokens)}I", tokens))


def token_count(tokens: bytes) -> int:
    """How many tokens `tokens` (token bytes) holds. Raises `InvalidInputError` on a torn last token."""
    count, torn = divmod(len(tokens), TOKEN_BYTES)
    if torn:
        raise InvalidInputError(
            f"token bytes of length {len(tokens)} end inside a token: send {TOKEN_BYTES} bytes for each"
        )
    return count
