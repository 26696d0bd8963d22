"""Prefix keys: 16 bytes that name a block by its own tokens and by everything before it.

    key_0 = H(domain tag, namespace)        key_i = H(key_{i-1}, tokens of block i as little-endian u32)

H is SHA-256 cut to 16 bytes; only full blocks have a key. This is the only module of the project that
hashes: a second implementation would sooner or later leave a field out and hand one tenant's cache to
another. Python's own `hash` is never used, as it differs from process to process.

Packed keys are keys one after another, 16 bytes each, in one `bytes`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import PrefixKey
from wavepp.core.limits import KEY_BYTES, NAME_BYTES_MAX, SALT_BYTES_MAX, TOKEN_BYTES
from wavepp.core.tokens import token_count

_ROOT_TAG: Final = b"wavepp/prefix-key/1\x00"
_DIGEST_TAG: Final = b"wavepp/digest/1\x00"

_ABSENT: Final = b"\x00"
_PRESENT: Final = b"\x01"
_BLOCK_TOKENS_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Namespace:
    """What must be equal for two requests to share a block, apart from the tokens.

    `adapter` names an adapter together with its content revision, so that a reloaded one starts cold.
    `cache_salt` isolates tenants: requests with different salts share nothing. None (absent) and "" (empty)
    are different values of either, and an adapter never collides with a salt of the same name.

    Raises `InvalidInputError` when a field is too long, is not Unicode text, or `block_tokens` is out of
    range.
    """

    model_fingerprint: str
    cache_dtype: str
    block_tokens: int
    adapter: str | None
    cache_salt: str | None

    def __post_init__(self) -> None:
        if not 1 <= self.block_tokens <= _BLOCK_TOKENS_MAX:
            raise InvalidInputError(f"block_tokens is {self.block_tokens}: give a value in [1, {_BLOCK_TOKENS_MAX}]")
        _text("model_fingerprint", self.model_fingerprint, NAME_BYTES_MAX)
        _text("cache_dtype", self.cache_dtype, NAME_BYTES_MAX)
        _text("adapter", self.adapter, NAME_BYTES_MAX)
        _text("cache_salt", self.cache_salt, SALT_BYTES_MAX)

    def encode(self) -> bytes:
        """The canonical form: of each field a tag, whether it is present, and its length before its bytes."""
        fields = (
            (b"m", _text("model_fingerprint", self.model_fingerprint, NAME_BYTES_MAX)),
            (b"d", _text("cache_dtype", self.cache_dtype, NAME_BYTES_MAX)),
            (b"b", struct.pack("<I", self.block_tokens)),
            (b"a", _text("adapter", self.adapter, NAME_BYTES_MAX)),
            (b"s", _text("cache_salt", self.cache_salt, SALT_BYTES_MAX)),
        )
        return b"".join(tag + _framed(value) for tag, value in fields)


def root_key(namespace: Namespace) -> PrefixKey:
    """The key before the first block: names the namespace alone."""
    return PrefixKey(hashlib.sha256(_ROOT_TAG + namespace.encode()).digest()[:KEY_BYTES])


def prefix_keys(namespace: Namespace, tokens: bytes) -> bytes:
    """Packed keys of the full blocks of `tokens` (token bytes), from the first on.

    A last block that is not full has no key. Raises `InvalidInputError` on a torn last token.
    """
    return extend_keys(root_key(namespace), namespace.block_tokens, tokens)


def extend_keys(previous: PrefixKey, block_tokens: int, tokens: bytes) -> bytes:
    """Packed keys of the full blocks of `tokens`, which follow the block that `previous` names.

    `previous` is `root_key` when nothing comes before. `tokens` (token bytes) starts at a block boundary.
    Raises `InvalidInputError` when `previous` is not 16 bytes, `block_tokens` < 1, or a token is torn.
    """
    if len(previous) != KEY_BYTES:
        raise InvalidInputError(f"a prefix key has {KEY_BYTES} bytes, this one has {len(previous)}")
    if block_tokens < 1:
        raise InvalidInputError(f"block_tokens is {block_tokens}: give at least 1")
    full_blocks = token_count(tokens) // block_tokens
    block_bytes = block_tokens * TOKEN_BYTES
    sha256 = hashlib.sha256
    key: bytes = previous
    keys: list[bytes] = []
    append = keys.append
    for start in range(0, full_blocks * block_bytes, block_bytes):
        key = sha256(key + tokens[start : start + block_bytes]).digest()[:KEY_BYTES]
        append(key)
    return b"".join(keys)


def key_count(packed: bytes) -> int:
    """How many keys `packed` holds. Raises `InvalidInputError` when its length is not a multiple of 16."""
    count, torn = divmod(len(packed), KEY_BYTES)
    if torn:
        raise InvalidInputError(
            f"packed keys of length {len(packed)} end inside a key: send {KEY_BYTES} bytes for each"
        )
    return count


def key_at(packed: bytes, i: int) -> PrefixKey:
    """The `i`-th key of `packed`, counted from 0. Raises `InvalidInputError` when there is none."""
    if not 0 <= i < len(packed) // KEY_BYTES:
        raise InvalidInputError(f"there is no key {i}: {len(packed) // KEY_BYTES} keys are packed here")
    return PrefixKey(packed[i * KEY_BYTES : (i + 1) * KEY_BYTES])


def digest(domain: str, parts: Iterable[bytes | None]) -> bytes:
    """SHA-256 (32 bytes) over `parts`, length framed, for purpose `domain`; None and b"" differ.

    For everything besides blocks that needs a stable name by content (the same request sent twice, a
    model's fingerprint), so that no other module has to hash.
    """
    hasher = hashlib.sha256(_DIGEST_TAG + _framed(domain.encode()))
    for part in parts:
        hasher.update(_framed(part))
    return hasher.digest()


def _framed(value: bytes | None) -> bytes:
    if value is None:
        return _ABSENT
    return _PRESENT + struct.pack("<I", len(value)) + value


def _text(name: str, value: str | None, bytes_max: int) -> bytes | None:
    if value is None:
        return None
    try:
        encoded = value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{name} is not Unicode text ({error.reason}): send valid UTF-8") from error
    if len(encoded) > bytes_max:
        raise InvalidInputError(f"{name} has {len(encoded)} bytes of UTF-8, the limit is {bytes_max}: shorten it")
    return encoded
