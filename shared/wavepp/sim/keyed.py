"""Prompts without tokens: what a cache sees of a prompt is the keys of its blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from wavepp.core.errors import InvalidInputError
from wavepp.core.keys import Namespace, extend_keys, root_key
from wavepp.core.limits import TOKEN_BYTES

_ID_BYTES: Final = 8
_ROOT: Final = root_key(Namespace("simulated blocks", "none", 1, None, None))


@dataclass(frozen=True, slots=True)
class KeyedAsk:
    """A request of `prompt_tokens`. `keys`: packed keys of its full blocks. `number`: its place in the arrivals."""

    prompt_tokens: int
    keys: bytes
    number: int = 0
    kind: str = ""


def chain_keys(block_ids: Iterable[int]) -> bytes:
    """Packed keys of blocks whose contents go by these ids (below 2^64): equal where all ids up to there are."""
    try:
        packed = b"".join(block_id.to_bytes(_ID_BYTES, "little") for block_id in block_ids)
    except OverflowError as error:
        raise InvalidInputError(f"a block id is not in [0, 2^{8 * _ID_BYTES}): {error}") from error
    # An id is as long as two tokens, so it is hashed like a block of two.
    return extend_keys(_ROOT, _ID_BYTES // TOKEN_BYTES, packed)
