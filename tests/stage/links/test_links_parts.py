"""The parts of links that need no connection: segments, hellos, goodbyes, options, the registry."""

from __future__ import annotations

import sys
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from links_support import HELLO, OPTIONS, expecting, options

from wavepp.core.errors import InvalidInputError, PeerProtocolError
from wavepp.core.limits import FRAME_PAYLOAD_BYTES_MAX, NAME_BYTES_MAX
from wavepp.core.wire.goodbye import BYE_BYTES_MAX, ByeCode, decode_bye, encode_bye
from wavepp.core.wire.hello import HELLO_BYTES_MAX, Hello, decode_hello, encode_hello
from wavepp.stage.links.errors import HelloRefusedError, TransportUnavailableError
from wavepp.stage.links.framing import flat_views, writable_view
from wavepp.stage.links.registry import make_transport
from wavepp.stage.links.ucx_wire import segment_sizes, segments


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(1, 17))
def test_segments_join_to_the_payload_and_have_the_sizes_that_the_receiver_computes(
    buffers: list[bytes], segment_bytes: int
) -> None:
    joined = b"".join(buffers)
    cut = [bytes(segment) for segment in segments(flat_views(buffers), segment_bytes)]
    assert cut == [joined[at : at + segment_bytes] for at in range(0, len(joined), segment_bytes)]
    assert [len(segment) for segment in cut] == list(segment_sizes(len(joined), segment_bytes))


def test_segment_inside_one_buffer_is_no_copy() -> None:
    buffer = np.zeros(100, dtype=np.uint8)
    first, *_ = segments(flat_views([buffer.data]), 64)
    buffer[:] = 7
    assert bytes(first) == b"\x07" * 64


names = st.text(max_size=NAME_BYTES_MAX // 4)


@given(st.builds(Hello, names, names, st.integers(0, 63), st.integers(0, 63), names, names, st.integers(0, 2**63 - 1)))
def test_hello_survives_the_wire_and_mirrors_back(hello: Hello) -> None:
    raw = encode_hello(hello)
    assert len(raw) <= HELLO_BYTES_MAX
    assert decode_hello(raw) == hello
    assert hello.mirrored().mirrored() == hello
    assert expecting(hello.mirrored())(hello) == hello.mirrored()


@given(st.binary(max_size=200))
def test_bytes_from_a_stranger_are_a_hello_or_a_typed_error(raw: bytes) -> None:
    try:
        hello = decode_hello(raw)
    except PeerProtocolError:
        return
    assert decode_hello(encode_hello(hello)) == hello


@pytest.mark.parametrize(
    "fields",
    [
        [],
        ["c", "p", 0, 1, "a", "b"],
        ["c", "p", 0, 1, "a", "b", -1],
        ["c", "p", 0, 1, "a", "b", True],
        ["c", "p", 64, 1, "a", "b", 0],
        ["c", "p", 0, 1, "a", 5, 0],
        ["c" * (NAME_BYTES_MAX + 1), "p", 0, 1, "a", "b", 0],
        {"cluster": "c"},
    ],
)
def test_malformed_hello_is_a_typed_error(fields: Any) -> None:
    with pytest.raises(PeerProtocolError, match="hello"):
        decode_hello(msgpack.packb(fields))


def test_refusal_names_every_field_that_differs() -> None:
    other = Hello(
        "test", "p9", HELLO.from_stage, HELLO.to_stage, HELLO.from_incarnation, HELLO.to_incarnation, HELLO.epoch
    )
    with pytest.raises(HelloRefusedError, match="pipeline is 'p9', expected 'p0'"):
        expecting(HELLO.mirrored())(other)


@given(st.sampled_from(ByeCode), st.text())
def test_goodbye_is_bounded_and_survives_the_wire(code: ByeCode, text: str) -> None:
    raw = encode_bye(code, text * 20)
    assert len(raw) <= BYE_BYTES_MAX
    got, got_text = decode_bye(raw)
    assert got is code
    assert (text * 20).encode("utf-8", "replace").decode().startswith(got_text)


@given(st.binary(max_size=100))
def test_bytes_from_a_stranger_are_a_goodbye_or_a_typed_error(raw: bytes) -> None:
    try:
        code, text = decode_bye(raw)
    except PeerProtocolError:
        return
    assert decode_bye(encode_bye(code, text)) == (code, text)


@pytest.mark.parametrize("buffer", [bytes(4), bytearray(3), np.zeros((4, 4), np.uint8)[:, 0].data])
def test_buffer_that_cannot_be_received_into_is_an_input_error(buffer: Any) -> None:
    with pytest.raises(InvalidInputError, match="4 bytes"):
        writable_view(buffer, 4)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "float32", "complex64"])
def test_arrays_are_sent_as_their_bytes(dtype: str) -> None:
    array = np.ones((2, 3), dtype=dtype)
    (view,) = flat_views([array.data])
    assert bytes(view) == array.tobytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"payload_bytes_max": -1},
        {"payload_bytes_max": FRAME_PAYLOAD_BYTES_MAX + 1},
        {"heartbeat_s": 0.0},
        {"heartbeat_s": 5.0},
        {"handshake_s": 0.0},
        {"goodbye_s": -1.0},
    ],
)
def test_options_outside_their_bounds_are_an_input_error(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        options(**changes)


async def test_missing_ucxx_is_a_typed_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "ucxx" or name.startswith("ucxx.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ucxx", None)
    with pytest.raises(TransportUnavailableError, match=r"wavepp\[stage\].*--link socket"):
        make_transport("ucx", OPTIONS)


async def test_unknown_kind_is_an_input_error() -> None:
    with pytest.raises(InvalidInputError, match="known: ucx, socket"):
        make_transport("pigeon", OPTIONS)  # type: ignore[arg-type]
