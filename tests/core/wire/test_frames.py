"""Frames: what is sent arrives, and nothing that comes from outside raises anything but FrameError."""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavepp.core.errors import InvalidInputError, PeerProtocolError
from wavepp.core.ids import GrantId, PipelineEpoch, StageIndex, WaveId
from wavepp.core.limits import (
    CHUNK_KEYS_MAX,
    FRAME_HEADER_BYTES_MAX,
    FRAME_PAYLOAD_BYTES_MAX,
    FRAME_TENSORS_MAX,
    NAME_BYTES_MAX,
    STAGES_MAX,
    WAVE_REQUESTS_MAX,
)
from wavepp.core.waves.types import FailedGrant, StepTime
from wavepp.core.wire.prologue import PROLOGUE_BYTES, FrameError, FrameKind, Prologue
from wavepp.core.wire.types import DTYPE_BYTES, POSITION_MAX, REASON_BYTES_MAX, FrameChunk, TensorSpec
from wavepp.core.wire.wave_header import FrameHeader

BIG = 2**63 - 1

# ---- prologue ----------------------------------------------------------------------------------------------

PROLOGUE = Prologue.of(FrameKind.WAVE, b"some header", 1 << 20)


def test_a_prologue_has_64_bytes_in_the_layout_that_is_documented() -> None:
    packed = PROLOGUE.pack()
    assert len(packed) == PROLOGUE_BYTES == 64
    assert packed[:4] == b"WVPP"
    assert struct.unpack_from("<HHIIQ", packed, 4) == (1, 2, 11, zlib.crc32(b"some header"), 1 << 20)
    assert packed[24:60] == bytes(36)
    assert struct.unpack_from("<I", packed, 60) == (zlib.crc32(packed[:60]),)


@pytest.mark.parametrize("kind", FrameKind)
def test_a_prologue_arrives_as_it_was_sent(kind: FrameKind) -> None:
    sent = Prologue.of(kind, b"header", 7 if kind is FrameKind.WAVE else 0)
    assert Prologue.unpack(bytearray(sent.pack())) == sent


def test_every_flipped_bit_of_a_prologue_is_found() -> None:
    packed = PROLOGUE.pack()
    for bit in range(8 * len(packed)):
        damaged = bytearray(packed)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameError):
            Prologue.unpack(damaged)


def sealed(offset: int, field: str, value: Any) -> bytes:
    """A prologue with one other field and the right checksum."""
    packed = bytearray(PROLOGUE.pack())
    struct.pack_into(field, packed, offset, value)
    struct.pack_into("<I", packed, 60, zlib.crc32(packed[:60]))
    return bytes(packed)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes"),
        (PROLOGUE.pack()[:63], "63 bytes"),
        (PROLOGUE.pack() + b"\0", "65 bytes"),
        (sealed(0, "4s", b"HTTP"), "magic"),
        (sealed(4, "<H", 2), "version 2"),
        (sealed(6, "<H", 0), "kind 0"),
        (sealed(6, "<H", 6), "kind 6"),
        (sealed(8, "<I", FRAME_HEADER_BYTES_MAX + 1), "header of 1048577"),
        (sealed(16, "<Q", FRAME_PAYLOAD_BYTES_MAX + 1), "payload of 1073741825"),
        (sealed(16, "<Q", 2**64 - 1), "payload of"),
        (sealed(6, "<H", FrameKind.BYE), "BYE payload"),
        (sealed(40, "B", 1), "reserved"),
    ],
)
def test_a_prologue_outside_the_protocol_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(FrameError, match=reason):
        Prologue.unpack(data)


@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_no_prologue(data: bytes) -> None:
    with pytest.raises(FrameError):
        Prologue.unpack(data)


def test_a_header_other_than_the_one_announced_is_refused() -> None:
    PROLOGUE.verify_header(memoryview(b"some header"))
    with pytest.raises(FrameError, match="checksum"):
        PROLOGUE.verify_header(b"some_header")
    with pytest.raises(FrameError, match="10 bytes"):
        PROLOGUE.verify_header(b"some heade")


@pytest.mark.parametrize(
    ("kind", "header_bytes", "payload_bytes"),
    [
        (FrameKind.WAVE, FRAME_HEADER_BYTES_MAX + 1, 0),
        (FrameKind.WAVE, 1, FRAME_PAYLOAD_BYTES_MAX + 1),
        (FrameKind.WAVE, 1, -1),
        (FrameKind.HELLO, 1, 1),
        (FrameKind.HELLO, 16 * 1024 + 1, 0),
    ],
)
def test_what_the_receiver_would_refuse_is_not_sent(kind: FrameKind, header_bytes: int, payload_bytes: int) -> None:
    with pytest.raises(InvalidInputError):
        Prologue.of(kind, bytes(header_bytes), payload_bytes)


# ---- header ------------------------------------------------------------------------------------------------

counts = st.integers(0, BIG) | st.integers(0, 300)
grants = st.builds(GrantId, counts)
flags = st.booleans()


@st.composite
def chunk_lists(draw: st.DrawFn) -> tuple[FrameChunk, ...]:
    chunks = []
    for grant in draw(st.lists(grants, max_size=6, unique=True)):
        decode = draw(flags)
        length = 1 if decode else draw(st.integers(1, 100_000))
        start = draw(st.integers(0, POSITION_MAX - length))
        keys = draw(st.binary(min_size=0, max_size=3)) * 16
        chunks.append(FrameChunk(grant, start, length, draw(flags), draw(flags), decode, keys))
    return tuple(chunks)


stages = st.builds(StageIndex, st.integers(0, STAGES_MAX - 1))
failed_grants = st.builds(FailedGrant, grants, stages, st.text(max_size=20))
shapes = st.lists(st.integers(0, 1000), max_size=6).map(tuple)
tensors = st.builds(TensorSpec, st.text(min_size=1, max_size=30), st.sampled_from(sorted(DTYPE_BYTES)), shapes)
steps = st.builds(StepTime, stages, counts, counts, counts, counts)


@st.composite
def headers(draw: st.DrawFn) -> FrameHeader:
    chunks = draw(chunk_lists())
    running = {chunk.grant for chunk in chunks}
    ended = draw(st.lists(grants.filter(lambda grant: grant not in running), max_size=4, unique=True))
    return FrameHeader(
        epoch=PipelineEpoch(draw(counts)),
        wave=WaveId(draw(counts)),
        issued_ns=draw(counts),
        chunks=chunks,
        failed=tuple(draw(st.lists(failed_grants, max_size=3, unique_by=lambda entry: entry.grant))),
        ended=tuple(ended),
        tensors=tuple(draw(st.lists(tensors, max_size=3, unique_by=lambda tensor: tensor.name))),
        steps=tuple(draw(st.lists(steps, max_size=3, unique_by=lambda step: step.stage))),
    )


def test_the_bytes_of_a_tensor_are_its_elements_times_their_size() -> None:
    assert TensorSpec("h", "bfloat16", (3, 5, 7)).nbytes == 210
    assert TensorSpec("scalar", "float64", ()).nbytes == 8
    assert TensorSpec("empty", "float32", (0, 4096)).nbytes == 0
    with pytest.raises(InvalidInputError, match="complex64"):
        _ = TensorSpec("h", "complex64", (1,)).nbytes


@settings(max_examples=50)
@given(headers())
def test_a_header_arrives_as_it_was_sent(header: FrameHeader) -> None:
    packed = header.encode()
    assert FrameHeader.decode(packed, header.payload_bytes) == header
    assert FrameHeader.decode(memoryview(bytearray(packed)), header.payload_bytes) == header


HEADER = FrameHeader(
    epoch=PipelineEpoch(3),
    wave=WaveId(17),
    issued_ns=1_764_000_000_000_000_000,
    chunks=(
        FrameChunk(GrantId(1), 0, 64, snapshot=True),
        FrameChunk(GrantId(2), 128, 1, last=True, decode=True, keys=bytes(32)),
    ),
    failed=(FailedGrant(GrantId(5), StageIndex(1), "state mismatch"),),
    ended=(GrantId(8), GrantId(9)),
    tensors=(TensorSpec("hidden", "bfloat16", (65, 8)), TensorSpec("top_k", "int32", (65, 2))),
    steps=(StepTime(StageIndex(0), 5, 6, 7, 65), StepTime(StageIndex(1), 9, 9, 9, 65)),
)
PAYLOAD_BYTES = 65 * 8 * 2 + 65 * 2 * 4


def changed(change: Callable[[list[Any]], object]) -> bytes:
    """The encoded HEADER after `change` of its fields: [epoch, wave, issued, chunks, failed, ended, tensors, steps]."""
    fields: list[Any] = msgpack.unpackb(HEADER.encode(), use_list=True)
    change(fields)
    packed: bytes = msgpack.packb(fields)
    return packed


def put(*path: int, value: Any) -> Callable[[list[Any]], None]:
    def change(fields: list[Any]) -> None:
        for at in path[:-1]:
            fields = fields[at]
        fields[path[-1]] = value

    return change


def test_the_header_of_these_tests_is_valid() -> None:
    assert FrameHeader.decode(changed(lambda fields: None), PAYLOAD_BYTES) == HEADER


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda fields: fields.pop(), "8 fields"),
        (lambda fields: fields.append(0), "8 fields"),
        (put(0, value=-1), "epoch is -1"),
        (put(0, value=2**63), "epoch is 9223372036854775808"),
        (put(0, value=True), "epoch is True"),
        (put(0, value=1.0), "epoch is float"),
        (put(1, value="17"), "wave is '17'"),
        (put(1, value=None), "wave is NoneType"),
        (put(2, value=-5), "issue time"),
        (put(3, value=5), "chunks"),
        (put(3, value=[[i, 0, 1, 0, b""] for i in range(WAVE_REQUESTS_MAX + 1)]), "msgpack"),
        (put(3, 0, value=[1, 0, 64, 0]), "chunk is not an array of 5"),
        (put(3, 0, 0, value=2), "grant occurs twice"),
        (put(3, 0, 0, value=-1), "chunk's grant"),
        (put(3, 0, 1, value=-1), "chunk's start"),
        (put(3, 0, 1, value=POSITION_MAX), "beyond"),
        (put(3, 0, 2, value=0), "empty"),
        (put(3, 0, 2, value=-64), "chunk's length"),
        (put(3, 0, 2, value=[64]), "chunk's length is tuple"),
        (put(3, 0, 3, value=8), "flags 0x8"),
        (put(3, 1, 2, value=2), "decode chunk of 2"),
        (put(3, 0, 4, value=bytes(15)), "keys"),
        (put(3, 0, 4, value="0" * 16), "keys"),
        (put(3, 0, 4, value=bytes(16 * (CHUNK_KEYS_MAX + 1))), "msgpack"),
        (put(4, value=[[5, 1, "x"], [5, 2, "y"]]), "failed grant occurs twice"),
        (put(4, 0, 1, value=STAGES_MAX), "stage of a failed grant is 64"),
        (put(4, 0, 2, value=b"bytes"), "reason"),
        (put(4, 0, 2, value="é" * 257), "msgpack"),
        (put(5, value=[8, 8]), "ended grant occurs twice"),
        (put(5, value=[8, 2]), "grant 2 both runs and ends"),
        (put(5, value=[[8]]), "ended grant is tuple"),
        (put(6, value=[["t", "int8", []]] * (FRAME_TENSORS_MAX + 1)), "tensors: not an array of at most 16"),
        (put(6, 1, 0, value="hidden"), "tensor's name occurs twice"),
        (put(6, 0, 0, value=""), "no name"),
        (put(6, 0, 0, value="n" * (NAME_BYTES_MAX + 1)), "tensor's name"),
        (put(6, 0, 1, value="complex64"), "'complex64' is unknown"),
        (put(6, 0, 1, value=["int8"]), "element type tuple"),
        (put(6, 0, 2, value=[1] * 7), "shape"),
        (put(6, 0, 2, value=[65, -8]), "dimension"),
        (put(6, 0, 2, value=[65, 9]), "tensors take 1690 bytes, the payload has 1560"),
        (put(6, 0, 2, value=[BIG] * 6), "the payload has 1560"),
        (put(7, 1, 0, value=0), "step's stage occurs twice"),
        (put(7, 0, 0, value=99), "stage of a step is 99"),
        (put(7, 0, 1, value=-1), "start of a step"),
        (put(7, 0, 2, value=0.5), "duration of a step"),
        (put(7, 0, 3, value=-1), "wait of a step"),
        (put(7, 0, 4, value="65"), "tokens of a step"),
        (put(7, value={1: 2}), "msgpack"),
        (put(7, value=msgpack.ExtType(5, b"x")), "msgpack"),
    ],
)
def test_a_header_outside_the_protocol_is_refused(change: Callable[[list[Any]], object], reason: str) -> None:
    with pytest.raises(FrameError, match=reason):
        FrameHeader.decode(changed(change), PAYLOAD_BYTES)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x91" * 600 + b"\xc0",  # deep, but within msgpack's own limit
        b"\x91" * 5000,
        bytes([0x98, *[0x91] * 900, 0xC0, *[0xC0] * 7]),  # a deep value where a count is expected
        b"\xdd\xff\xff\xff\xff",  # claims 4 G elements
        b"\xc6\xff\xff\xff\xff",
        b"\xa2\xff\xfe",  # not UTF-8
        b"\xd6\xff\x00\x00\x00\x00",  # a timestamp
        b"\xc1",  # reserved by msgpack
        HEADER.encode() + b"\xc0",
        HEADER.encode()[:-1],
        bytes(FRAME_HEADER_BYTES_MAX + 1),
    ],
    ids=lambda data: f"{data[:6].hex()}-{len(data)}",
)
def test_hostile_msgpack_is_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        FrameHeader.decode(data, PAYLOAD_BYTES)


def refusal(data: bytes) -> str | None:
    """Why the header is refused, or None when it is read; any other exception fails the test."""
    try:
        FrameHeader.decode(data, PAYLOAD_BYTES)
    except FrameError as error:
        return error.reason
    return None


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_header(data: bytes) -> None:
    assert refusal(data)


@given(st.data())
def test_a_damaged_header_is_read_or_refused_but_never_raises_anything_else(data: st.DataObject) -> None:
    packed = bytearray(HEADER.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(packed))) if data.draw(flags) else len(packed)
    assert refusal(bytes(packed[:cut])) != ""
    if cut < len(packed):
        assert refusal(bytes(packed[:cut]))


values = st.recursive(
    st.none() | flags | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=8,
)


@given(st.data())
def test_any_value_in_any_place_is_read_or_refused_but_never_raises_anything_else(data: st.DataObject) -> None:
    def change(fields: list[Any]) -> None:
        at = data.draw(st.integers(0, len(fields) - 1))
        while isinstance(fields[at], list) and fields[at] and data.draw(st.booleans()):
            fields = fields[at]
            at = data.draw(st.integers(0, len(fields) - 1))
        fields[at] = data.draw(values)

    assert refusal(changed(change)) != ""


def test_a_long_reason_is_cut_between_characters() -> None:
    header = dataclasses.replace(HEADER, failed=(FailedGrant(GrantId(5), StageIndex(1), "x" + "é" * 400),))
    (failed,) = FrameHeader.decode(header.encode(), PAYLOAD_BYTES).failed
    assert failed.reason == "x" + "é" * ((REASON_BYTES_MAX - 1) // 2)


def test_a_reason_that_is_not_valid_unicode_is_sent_all_the_same() -> None:
    header = dataclasses.replace(HEADER, failed=(FailedGrant(GrantId(5), StageIndex(1), "bad \udc80 path"),))
    assert FrameHeader.decode(header.encode(), PAYLOAD_BYTES).failed[0].reason == "bad ? path"


def test_a_header_that_is_too_large_is_not_sent() -> None:
    chunks = tuple(FrameChunk(GrantId(i), 0, 64, keys=bytes(16 * CHUNK_KEYS_MAX)) for i in range(100))
    with pytest.raises(InvalidInputError, match="fewer chunks"):
        FrameHeader(PipelineEpoch(1), WaveId(1), chunks).encode()


def test_a_full_wave_fits() -> None:
    chunks = tuple(
        FrameChunk(GrantId(BIG - i), 2**30, 1, decode=True, keys=bytes(16)) for i in range(WAVE_REQUESTS_MAX)
    )
    ended = tuple(GrantId(BIG - WAVE_REQUESTS_MAX - i) for i in range(WAVE_REQUESTS_MAX))
    steps = tuple(StepTime(StageIndex(i), BIG, BIG, BIG, BIG) for i in range(STAGES_MAX))
    header = FrameHeader(PipelineEpoch(1), WaveId(1), chunks, ended=ended, steps=steps)
    assert FrameHeader.decode(header.encode(), 0) == header


def test_a_frame_error_is_the_peers_fault() -> None:
    assert issubclass(FrameError, PeerProtocolError)
