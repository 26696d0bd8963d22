"""Token bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavepp.core.errors import InvalidInputError
from wavepp.core.tokens import TOKEN_ID_MAX, decode_tokens, encode_tokens, token_count

ids = st.lists(st.integers(0, TOKEN_ID_MAX), max_size=50)


@given(ids)
def test_what_is_encoded_comes_back(tokens: list[int]) -> None:
    encoded = encode_tokens(tokens)
    assert decode_tokens(encoded) == tokens
    assert token_count(encoded) == len(tokens)


@given(ids, ids)
def test_token_bytes_of_a_sequence_are_those_of_its_parts(a: list[int], b: list[int]) -> None:
    assert encode_tokens(a) + encode_tokens(b) == encode_tokens(a + b)


def test_tokens_are_little_endian_of_four_bytes() -> None:
    assert encode_tokens([1, 0x01020304]) == bytes([1, 0, 0, 0, 4, 3, 2, 1])


def test_any_iterable_of_ids_is_taken() -> None:
    assert encode_tokens(i for i in range(3)) == encode_tokens([0, 1, 2])


@pytest.mark.parametrize("bad", [-1, TOKEN_ID_MAX + 1, 1.5, "a", None])
def test_an_id_that_is_no_token_is_refused_with_the_limit(bad: object) -> None:
    with pytest.raises(InvalidInputError, match=str(TOKEN_ID_MAX)):
        encode_tokens([7, bad])  # type: ignore[list-item]


@pytest.mark.parametrize("length", [1, 2, 3, 5, 4097])
def test_a_torn_token_is_refused(length: int) -> None:
    with pytest.raises(InvalidInputError, match="inside a token"):
        token_count(bytes(length))
    with pytest.raises(InvalidInputError, match="inside a token"):
        decode_tokens(bytes(length))
