"""The size of a request beside its prompt, against what the decoded message says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavepp.core.errors import InvalidInputError
from wavepp.router import request_size
from wavepp.router.request_size import FIELDS_MAX, check_request
from wavepp.v1 import prefill_pb2

TOKEN = st.builds(
    prefill_pb2.PrefillToken, index=st.integers(0, 1 << 31), text=st.text(max_size=9), logprob=st.floats(width=32)
)
PROMPT = st.one_of(
    st.builds(lambda t: {"text": t}, st.text()),
    st.builds(lambda t: {"token_bytes": t}, st.binary(max_size=500)),
    st.builds(lambda t: {"token_ids": prefill_pb2.TokenIds(ids=t)}, st.lists(st.integers(0, 1 << 31))),
)
REQUEST = st.builds(
    lambda prompt, **fields: prefill_pb2.PrefillRequest(**prompt, **fields),
    PROMPT,
    request_id=st.text(max_size=9),
    priority=st.integers(-(1 << 31), 1 << 31 - 1),
    max_tokens=st.integers(0, 1 << 31),
    generated=st.lists(TOKEN, max_size=9),
)


def beside(request: prefill_pb2.PrefillRequest) -> int:
    """Bytes of all but the prompt, by the library."""
    copy = prefill_pb2.PrefillRequest()
    copy.CopyFrom(request)
    copy.ClearField("prompt")
    return copy.ByteSize()


@given(REQUEST)
def test_the_bytes_beside_a_prompt_are_counted_as_they_are(request: prefill_pb2.PrefillRequest) -> None:
    raw, size = request.SerializeToString(), beside(request)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_size, "UNCHECKED_BYTES_MAX", -1)
        patch.setattr(request_size, "BESIDE_PROMPT_BYTES_MAX", size)
        check_request(raw)
        patch.setattr(request_size, "BESIDE_PROMPT_BYTES_MAX", size - 1)
        if size:
            with pytest.raises(InvalidInputError, match="beside its prompt"):
                check_request(raw)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_left_to_the_decoder(raw: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_size, "UNCHECKED_BYTES_MAX", -1)
        check_request(raw)


def test_prompts_of_any_size_pass() -> None:
    for fields in ({"text": "a" * 5_000_000}, {"token_bytes": b"abcd" * 2_000_000}):
        check_request(prefill_pb2.PrefillRequest(**fields).SerializeToString())


@pytest.mark.parametrize("field", [b"\x6a\x00", b"\x0a\x00", b"\x40\x01", b"\xa0\x06\x01"])
def test_masses_of_small_fields_are_refused(field: bytes) -> None:
    """Generated tokens, the same field again and again, unknown fields."""
    with pytest.raises(InvalidInputError, match=f"{FIELDS_MAX} fields"):
        check_request(field * 1_000_000)


def test_masses_of_small_messages_in_one_are_refused() -> None:
    top = b"\x2a\x00" * 3_000_000
    with pytest.raises(InvalidInputError, match="beside its prompt"):
        check_request(b"\x6a\x80\x9b\xee\x02" + top)
