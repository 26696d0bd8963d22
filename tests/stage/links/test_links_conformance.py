"""What every transport must do, run over each of them: both ends in one process."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import uvloop
from links_faulty import FaultPlan, FaultyTransport, wrap
from links_support import (
    HELLO,
    KINDS,
    MIB,
    OPTIONS,
    SCHEME,
    connected,
    expecting,
    listening,
    options,
    pattern,
    transport_of,
)

from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import Incarnation, PipelineEpoch, StageIndex
from wavepp.core.limits import FRAME_HEADER_BYTES_MAX, FRAMES_UNREAD_MAX
from wavepp.core.wire.hello import Hello
from wavepp.core.wire.prologue import PROLOGUE_BYTES
from wavepp.stage.links.errors import HelloRefusedError, LinkConnectError, LinkLostError, LossReason
from wavepp.stage.links.registry import TransportKind, make_transport
from wavepp.stage.links.session import LinkSession

pytestmark = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy()


async def lost(link: LinkSession) -> LinkLostError:
    return await asyncio.wait_for(asyncio.shield(link.closed), 5.0)


async def round_trip(asking: LinkSession, answering: LinkSession) -> None:
    """When this returns, whatever `answering` could do after its earlier input it has done."""
    await answering.send(b"marker")
    assert (await asking.recv()).header == b"marker"


# --- frames ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [0, 1, 1024, 8 * 1024, 64 * 1024, MIB, 16 * MIB])
async def test_frames_arrive_in_order_and_unchanged(kind: TransportKind, nbytes: int) -> None:
    payloads = [pattern(nbytes, number) for number in range(4)]
    async with connected(kind) as pair:

        async def send() -> None:
            for number, payload in enumerate(payloads):
                await pair.left.send(b"frame %d" % number, [payload])

        sending = asyncio.ensure_future(send())
        for number, payload in enumerate(payloads):
            frame = await pair.right.recv()
            assert frame.header == b"frame %d" % number
            assert memoryview(frame.payload).nbytes == nbytes
            assert bytes(frame.payload) == payload
        await sending
        assert pair.left.counters.bytes_sent == pair.right.counters.bytes_received


async def test_payload_is_the_buffers_joined(kind: TransportKind) -> None:
    buffers = [pattern(size, size) for size in (3 * MIB, 0, 5 * MIB + 17, 1, 4 * MIB, 100)]
    async with connected(kind) as pair:
        sending = asyncio.ensure_future(pair.left.send(b"h", buffers))
        assert bytes((await pair.right.recv()).payload) == b"".join(buffers)
        await sending


async def test_payload_may_be_a_numpy_array_and_lands_in_the_allocated_one(kind: TransportKind) -> None:
    rows = np.arange(300_000, dtype=np.float32).reshape(300, 1000)
    place = np.empty_like(rows)
    asked: list[tuple[bytes, int]] = []

    def allocate(header: bytes, nbytes: int) -> memoryview:
        asked.append((header, nbytes))
        return place.data

    async with connected(kind, right=options(allocate=allocate)) as pair:
        await asyncio.gather(pair.left.send(b"rows", [rows.data]), pair.right.recv())
        assert asked == [(b"rows", rows.nbytes)]
        assert np.array_equal(place, rows)


async def test_long_headers_arrive(kind: TransportKind) -> None:
    headers = [bytes([size % 251]) * size for size in (0, 4000, 8128, 8129, 40_000, FRAME_HEADER_BYTES_MAX)]
    async with connected(kind) as pair:

        async def send() -> None:
            for header in headers:
                await pair.left.send(header, [header])

        sending = asyncio.ensure_future(send())
        for header in headers:
            frame = await pair.right.recv()
            assert frame.header == header
            assert bytes(frame.payload) == header
        await sending


async def test_many_small_frames_both_ways(kind: TransportKind) -> None:
    async with connected(kind) as pair:

        async def send(link: LinkSession) -> None:
            for number in range(2000):
                await link.send(number.to_bytes(4, "little"), [b"x" * (number % 300)])

        async def take(link: LinkSession) -> None:
            for number in range(2000):
                frame = await link.recv()
                assert frame.header == number.to_bytes(4, "little")
                assert bytes(frame.payload) == b"x" * (number % 300)

        await asyncio.gather(send(pair.left), take(pair.right), send(pair.right), take(pair.left))


async def test_large_frames_both_ways(kind: TransportKind) -> None:
    # Credits and heartbeats are due while a frame is half out; they must not end up inside it.
    brisk = options(heartbeat_s=0.001, silence_s=5.0)
    payload = pattern(16 * MIB, 1)
    async with connected(kind, left=brisk, right=brisk) as pair:

        async def send(link: LinkSession) -> None:
            for number in range(6):
                await link.send(b"%d" % number, [payload])

        async def take(link: LinkSession) -> None:
            for number in range(6):
                frame = await link.recv()
                assert frame.header == b"%d" % number
                assert frame.payload == payload

        await asyncio.gather(send(pair.left), take(pair.right), send(pair.right), take(pair.left))


async def test_frames_of_concurrent_senders_do_not_mix(kind: TransportKind) -> None:
    async with connected(kind) as pair:

        async def send(letter: bytes) -> None:
            for _ in range(5):
                await pair.left.send(letter, [letter * MIB, letter * MIB])

        sending = asyncio.gather(*(send(letter) for letter in (b"a", b"b", b"c")))
        for _ in range(15):
            frame = await pair.right.recv()
            assert bytes(frame.payload) == frame.header * (2 * MIB)
        await sending


async def test_small_frame_behind_a_large_one_waits_for_it(kind: TransportKind) -> None:
    async with connected(kind) as pair:
        sending = asyncio.gather(pair.left.send(b"large", [bytes(16 * MIB)]), pair.left.send(b"small", [b"x"]))
        assert (await pair.right.recv()).header == b"large"
        assert (await pair.right.recv()).header == b"small"
        await sending


# --- bounds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [0, 5 * MIB])
async def test_sender_waits_while_the_receiver_has_unread_frames(kind: TransportKind, nbytes: int) -> None:
    allocated: list[int] = []

    def allocate(_header: bytes, size: int) -> bytearray:
        allocated.append(size)
        return bytearray(size)

    async with connected(kind, right=options(allocate=allocate)) as pair:
        for _ in range(FRAMES_UNREAD_MAX):
            await pair.left.send(b"unread", [bytes(nbytes)])
        further = asyncio.ensure_future(pair.left.send(b"further", [bytes(nbytes)]))
        await round_trip(pair.left, pair.right)
        assert not further.done()
        assert pair.left.counters.credit_waits == 1
        assert len(allocated) <= FRAMES_UNREAD_MAX
        await pair.right.recv()
        await further
        for _ in range(FRAMES_UNREAD_MAX):
            await pair.right.recv()


async def test_frame_without_credit_ends_the_link(kind: TransportKind) -> None:
    async with connected(kind) as pair:
        pair.left._credits += 1  # a sender that cannot count
        for _ in range(FRAMES_UNREAD_MAX + 1):
            await pair.left.send(b"unread")
        error = await lost(pair.right)
        assert error.reason is LossReason.PROTOCOL
        assert "without credit" in error.detail


async def test_own_frame_above_the_bounds_is_an_error_and_the_link_goes_on(kind: TransportKind) -> None:
    async with connected(kind, left=options(payload_bytes_max=1000)) as pair:
        with pytest.raises(InvalidInputError, match="payload_bytes_max"):
            await pair.left.send(b"h", [bytes(1001)])
        with pytest.raises(InvalidInputError, match="header"):
            await pair.left.send(bytes(FRAME_HEADER_BYTES_MAX + 1))
        with pytest.raises(InvalidInputError, match="contiguous"):
            await pair.left.send(b"h", [np.zeros((4, 4)).T[1:].data])
        await pair.left.send(b"fine", [bytes(1000)])
        assert (await pair.right.recv()).header == b"fine"


async def test_oversized_frame_is_refused_before_anything_is_allocated(kind: TransportKind) -> None:
    asked: list[int] = []

    def allocate(_header: bytes, nbytes: int) -> bytearray:
        asked.append(nbytes)
        return bytearray(nbytes)

    async with connected(kind, right=options(payload_bytes_max=MIB, allocate=allocate)) as pair:
        with pytest.raises(LinkLostError):
            # The first may be out before the refusal comes back; then waiting for the answer ends in the loss.
            await asyncio.gather(pair.left.send(b"h", [bytes(MIB + 1)]), pair.left.recv())
        error = await lost(pair.right)
        assert error.reason is LossReason.PROTOCOL
        assert str(MIB + 1) in error.detail
        assert asked == []


@pytest.mark.parametrize(
    ("at", "words"), [(0, "magic"), (10, "checksum"), (PROLOGUE_BYTES, "checksum"), (PROLOGUE_BYTES + 4, "checksum")]
)
async def test_damaged_prologue_or_header_ends_the_link_at_both_ends(kind: TransportKind, at: int, words: str) -> None:
    asked: list[int] = []

    def allocate(_header: bytes, nbytes: int) -> bytearray:
        asked.append(nbytes)
        return bytearray(nbytes)

    async with connected(kind, right=options(allocate=allocate)) as pair:
        faulty = wrap(pair.left, FaultPlan(corrupt_frame=1, corrupt_at=at))
        await faulty.send(b"first")
        assert (await pair.right.recv()).header == b"first"
        with pytest.raises(LinkLostError):
            await asyncio.gather(faulty.send(b"second", [bytes(100_000)]), faulty.recv())
        error = await lost(pair.right)
        assert error.reason is LossReason.PROTOCOL
        assert words in error.detail
        assert asked == []
        with pytest.raises(LinkLostError):
            await pair.right.recv()


@pytest.mark.parametrize("wrong", ["raises", "short", "read-only"])
async def test_failing_allocation_ends_the_link_and_is_reported(kind: TransportKind, wrong: str) -> None:
    def allocate(_header: bytes, nbytes: int) -> Any:
        if wrong == "raises":
            raise MemoryError("the pool is empty")
        return bytearray(nbytes - 1) if wrong == "short" else bytes(nbytes)

    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
    async with connected(kind, right=options(allocate=allocate)) as pair:
        with pytest.raises(LinkLostError):
            await asyncio.gather(pair.left.send(b"h", [bytes(MIB)]), pair.left.recv())
        assert (await lost(pair.right)).reason is LossReason.FAULT
    assert reported


# --- cancelling --------------------------------------------------------------------------------------------


async def test_cancelled_recv_loses_no_frame(kind: TransportKind) -> None:
    async with connected(kind) as pair:
        for number in range(20):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(pair.right.recv(), 0.001)
            await pair.left.send(b"%d" % number, [bytes(20_000)])
            assert (await pair.right.recv()).header == b"%d" % number


async def test_send_cancelled_while_it_waits_leaves_no_trace(kind: TransportKind) -> None:
    async with connected(kind) as pair:
        for number in range(FRAMES_UNREAD_MAX):
            await pair.left.send(b"%d" % number)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pair.left.send(b"dropped"), 0.01)
        for number in range(FRAMES_UNREAD_MAX):
            assert (await pair.right.recv()).header == b"%d" % number
        await pair.left.send(b"next")
        assert (await pair.right.recv()).header == b"next"


async def test_send_cancelled_half_way_ends_the_link(kind: TransportKind) -> None:
    async with connected(kind) as pair:
        sending = asyncio.ensure_future(pair.left.send(b"h", [bytes(64 * MIB)]))
        await asyncio.sleep(0)  # it has started; 64 MiB are more than any buffer on the way takes at once
        assert sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert (await lost(pair.left)).reason is LossReason.SEND_ABANDONED
        assert (await lost(pair.right)).reason is LossReason.RESET


# --- the end of a link -------------------------------------------------------------------------------------


async def test_close_wakes_pending_receives_at_both_ends(kind: TransportKind) -> None:
    async with connected(kind) as pair:
        receives = [asyncio.ensure_future(link.recv()) for link in (pair.left, pair.right)]
        await round_trip_started(receives)
        await pair.left.close("enough")
        for receive, reason in zip(receives, (LossReason.CLOSED, LossReason.CLOSED_BY_PEER), strict=True):
            with pytest.raises(LinkLostError) as caught:
                await asyncio.wait_for(receive, 2.0)
            assert caught.value.reason is reason
            assert "enough" in caught.value.detail
        await pair.left.close()
        await pair.right.close()


async def round_trip_started(tasks: list[asyncio.Future[Any]]) -> None:
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


async def test_loss_wakes_pending_sends(kind: TransportKind) -> None:
    async with connected(kind) as pair:
        for _ in range(FRAMES_UNREAD_MAX):
            await pair.left.send(b"unread")
        sends = [asyncio.ensure_future(pair.left.send(b"waiting")) for _ in range(3)]
        await round_trip_started(sends)
        pair.right.abort("test")
        for send in sends:
            with pytest.raises(LinkLostError) as caught:
                await asyncio.wait_for(send, 2.0)
            assert caught.value.reason is LossReason.RESET


async def test_loss_in_the_middle_of_a_transfer_frees_the_buffers(kind: TransportKind) -> None:
    places: list[weakref.ref[np.ndarray[Any, Any]]] = []
    allocated = asyncio.Event()

    def allocate(_header: bytes, nbytes: int) -> memoryview:
        place = np.empty(nbytes, dtype=np.uint8)
        places.append(weakref.ref(place))
        allocated.set()
        return place.data

    async with connected(kind, right=options(allocate=allocate)) as pair:
        sending = asyncio.ensure_future(pair.left.send(b"h", [bytes(64 * MIB)]))
        await allocated.wait()
        pair.right.abort("test")
        with pytest.raises(LinkLostError):
            await asyncio.wait_for(sending, 2.0)
        await asyncio.wait_for(pair.left.torn_down(), 2.0)
        await asyncio.wait_for(pair.right.torn_down(), 2.0)
        gc.collect()
        assert [place() for place in places] == [None]


async def test_nothing_is_written_to_a_buffer_once_its_link_is_torn_down(kind: TransportKind) -> None:
    place = np.zeros(64 * MIB, dtype=np.uint8)
    async with (
        connected(kind, right=options(allocate=lambda _header, _nbytes: place.data)) as pair,
        listening(kind) as (other_listener, other_address),
    ):
        sending = asyncio.ensure_future(pair.left.send(b"h", [b"\xff" * place.nbytes]))
        while not place[5 * MIB]:  # noqa: ASYNC110  # until it is half way; nothing announces that
            await asyncio.sleep(0)
        pair.right.abort("test")
        await asyncio.wait_for(pair.right.torn_down(), 2.0)
        place[:] = 0
        with pytest.raises(LinkLostError):
            await asyncio.wait_for(sending, 2.0)
        # Traffic over the same transport, so that whatever was still to be done there is done.
        ends = await asyncio.gather(pair.right_transport.connect(other_address, HELLO, 5.0), other_listener.accept())
        for _ in range(10):
            await asyncio.gather(ends[0].send(b"h", [bytes(MIB)]), ends[1].recv())
        assert not place.any()


async def test_lost_link_stays_dead(kind: TransportKind) -> None:
    async with connected(kind) as pair:
        pair.left.abort("test")
        for _ in range(2):
            with pytest.raises(LinkLostError, match="test"):
                await pair.left.send(b"h")
            with pytest.raises(LinkLostError, match="test"):
                await pair.left.recv()
        await lost(pair.right)


async def test_frames_that_nobody_took_are_dropped_with_the_link(kind: TransportKind) -> None:
    places: list[weakref.ref[np.ndarray[Any, Any]]] = []

    def allocate(_header: bytes, nbytes: int) -> memoryview:
        place = np.empty(nbytes, dtype=np.uint8)
        places.append(weakref.ref(place))
        return place.data

    async with connected(kind, right=options(allocate=allocate)) as pair:
        await pair.left.send(b"unread", [bytes(100)])
        await round_trip(pair.left, pair.right)
        assert pair.right.counters.frames_received == 1
        pair.left.abort("test")
        await lost(pair.right)
        with pytest.raises(LinkLostError):
            await pair.right.recv()
        await pair.right.torn_down()
        gc.collect()
        assert [place() for place in places] == [None]


async def test_heartbeats_keep_an_idle_link_alive(kind: TransportKind) -> None:
    brisk = options(heartbeat_s=0.05, silence_s=0.3)
    async with connected(kind, left=brisk, right=brisk) as pair:
        done, _ = await asyncio.wait({pair.left.closed, pair.right.closed}, timeout=1.0)
        assert not done


async def test_end_that_sends_no_heartbeats_is_lost(kind: TransportKind) -> None:
    mute = options(heartbeat_s=30.0, silence_s=60.0)
    async with connected(kind, left=mute, right=options(heartbeat_s=0.05, silence_s=0.2)) as pair:
        error = await lost(pair.right)
        assert error.reason is LossReason.SILENT
        assert (await lost(pair.left)).reason is LossReason.RESET


async def test_new_link_after_a_loss_in_the_same_process(kind: TransportKind) -> None:
    async with connected(kind) as pair:
        left, right = pair.left, pair.right
        for number in range(5):
            # Leave behind what a loss leaves behind: unread frames, and one that is half way.
            await left.send(b"unread", [bytes(MIB)])
            half = asyncio.ensure_future(left.send(b"half", [bytes(32 * MIB)]))
            await round_trip(left, right)
            right.abort("test")
            with pytest.raises(LinkLostError):
                await asyncio.gather(half, left.recv())
            hello = replace(HELLO, epoch=PipelineEpoch(HELLO.epoch))
            fresh, right = await asyncio.gather(  # type: ignore[assignment]
                pair.left_transport.connect(pair.address, hello, 5.0), pair.listener.accept()
            )
            assert isinstance(fresh, LinkSession)
            left = fresh
            sending = asyncio.ensure_future(left.send(b"%d" % number, [bytes(5 * MIB)]))
            assert (await right.recv()).header == b"%d" % number
            await sending


async def test_closing_the_transport_ends_its_links(kind: TransportKind) -> None:
    async with connected(kind) as pair:
        await pair.left_transport.close()
        assert (await lost(pair.left)).reason is LossReason.CUT
        assert (await lost(pair.right)).reason is LossReason.RESET
        with pytest.raises(LinkConnectError, match="closed"):
            await pair.left_transport.connect(pair.address, HELLO, 1.0)


async def test_lost_links_leave_no_descriptors_behind(kind: TransportKind) -> None:
    async with connected(kind) as pair:
        left, right = pair.left, pair.right
        before = len(os.listdir("/proc/self/fd"))
        for number in range(20):
            (left if number % 2 else right).abort("test")
            await left.torn_down()
            await right.torn_down()
            left, right = await asyncio.gather(  # type: ignore[assignment]
                pair.left_transport.connect(pair.address, HELLO, 5.0), pair.listener.accept()
            )
        assert len(os.listdir("/proc/self/fd")) <= before


# --- the handshake -----------------------------------------------------------------------------------------


async def test_both_ends_know_each_other(kind: TransportKind) -> None:
    async with connected(kind) as pair:
        assert pair.right.peer == HELLO
        assert pair.left.peer == HELLO.mirrored()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cluster": "other"}, "cluster"),
        ({"pipeline": "p1"}, "pipeline"),
        ({"from_stage": StageIndex(3)}, "from_stage"),
        ({"to_incarnation": Incarnation("right-0")}, "to_incarnation"),
        ({"epoch": PipelineEpoch(6)}, "epoch"),
    ],
)
async def test_wrong_hello_is_refused_at_both_ends(kind: TransportKind, change: dict[str, Any], field: str) -> None:
    async with listening(kind) as (listener, address), transport_of(kind) as transport:
        wrong: Hello = replace(HELLO, **change)
        outcomes = await asyncio.gather(
            transport.connect(address, wrong, 5.0), listener.accept(), return_exceptions=True
        )
        for outcome in outcomes:
            assert isinstance(outcome, HelloRefusedError)
            # What is wrong is named in the words of the refusing end, and each end hears them.
            assert field in str(outcome)
        right, left = await asyncio.gather(listener.accept(), transport.connect(address, HELLO, 5.0))
        assert right.peer == left.peer.mirrored()


async def test_answer_that_does_not_fit_is_refused_by_the_connecting_end(kind: TransportKind) -> None:
    impostor = replace(HELLO.mirrored(), from_incarnation=Incarnation("right-2"))
    async with listening(kind, check=lambda _peer: impostor) as (listener, address), transport_of(kind) as transport:
        accepting = asyncio.ensure_future(listener.accept())
        with pytest.raises(HelloRefusedError, match="from_incarnation"):
            await transport.connect(address, HELLO, 5.0)
        try:
            right = await accepting
        except LinkConnectError:
            return
        await asyncio.wait_for(asyncio.shield(right.closed), 2.0)


async def test_failing_check_ends_the_handshake_and_is_reported(kind: TransportKind) -> None:
    def check(_peer: Hello) -> Hello:
        raise RuntimeError("a fault in the check")

    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
    async with listening(kind, check=check) as (listener, address), transport_of(kind) as transport:
        outcomes = await asyncio.gather(
            transport.connect(address, HELLO, 5.0), listener.accept(), return_exceptions=True
        )
        assert all(isinstance(outcome, LinkConnectError) for outcome in outcomes)
    assert any("fault in the check" in repr(context.get("exception")) for context in reported)


async def test_mute_listener_times_out(kind: TransportKind) -> None:
    server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with transport_of(kind) as transport:
        with pytest.raises(LinkConnectError, match="within"):
            await asyncio.wait_for(transport.connect(f"{SCHEME[kind]}://127.0.0.1:{port}", HELLO, 0.3), 2.0)
    server.close()


async def test_mute_connection_keeps_nobody_else_waiting(kind: TransportKind) -> None:
    async with listening(kind, options(handshake_s=0.5)) as (listener, address), transport_of(kind) as transport:
        port = int(address.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        left, right = await asyncio.gather(transport.connect(address, HELLO, 5.0), listener.accept())
        await left.send(b"fine")
        assert (await right.recv()).header == b"fine"
        if kind == "socket":  # UCX does not tell us about such a connection
            with pytest.raises(LinkConnectError, match="no proper hello"):
                await asyncio.wait_for(listener.accept(), 2.0)
        writer.close()


async def test_garbage_from_a_stranger_does_not_reach_the_listener(kind: TransportKind) -> None:
    async with listening(kind) as (listener, address), transport_of(kind) as transport:
        port = int(address.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 100)
        await writer.drain()
        accepting = asyncio.ensure_future(listener.accept())
        if kind == "socket":
            with pytest.raises(LinkConnectError, match="magic"):
                await asyncio.wait_for(accepting, 2.0)
            accepting = asyncio.ensure_future(listener.accept())
        await transport.connect(address, HELLO, 5.0)
        assert (await asyncio.wait_for(accepting, 2.0)).peer == HELLO
        writer.close()


async def test_connecting_where_nobody_listens_fails_at_once(kind: TransportKind) -> None:
    async with listening(kind) as (listener, address):
        await listener.close()
    async with transport_of(kind) as transport:
        with pytest.raises(LinkConnectError, match="cannot connect"):
            await asyncio.wait_for(transport.connect(address, HELLO, 5.0), 2.0)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:80", "http://127.0.0.1:80", "{scheme}://127.0.0.1", "{scheme}://h:99999"]
)
async def test_address_of_another_kind_is_an_input_error(kind: TransportKind, address: str) -> None:
    async with transport_of(kind) as transport:
        with pytest.raises(InvalidInputError, match="address"):
            await transport.connect(address.format(scheme=SCHEME[kind]), HELLO, 1.0)


async def test_port_that_is_taken_is_a_typed_error(kind: TransportKind) -> None:
    async with listening(kind) as (_, address), transport_of(kind) as transport:
        taken = transport.listen(expecting(HELLO.mirrored()), port=int(address.rpartition(":")[2]))
        with pytest.raises(LinkConnectError, match="listen"):
            await taken.start()


async def test_closing_a_listener_wakes_accepts_and_keeps_its_links(kind: TransportKind) -> None:
    async with connected(kind) as pair:
        accepts = [asyncio.ensure_future(pair.listener.accept()) for _ in range(2)]
        await round_trip_started(accepts)
        await pair.listener.close()
        for accept in accepts:
            with pytest.raises(LinkConnectError, match="closed"):
                await asyncio.wait_for(accept, 2.0)
        await pair.left.send(b"still here")
        assert (await pair.right.recv()).header == b"still here"


# --- the fault wrapper -------------------------------------------------------------------------------------


async def test_fault_plan_cuts_before_a_frame(kind: TransportKind) -> None:
    async with connected(kind) as pair:
        faulty = wrap(pair.left, FaultPlan(cut_before=1))
        await faulty.send(b"0")
        assert (await pair.right.recv()).header == b"0"
        with pytest.raises(LinkLostError, match="fault plan"):
            await faulty.send(b"1")
        assert (await lost(pair.right)).reason is LossReason.RESET


async def test_fault_plan_delays_frames(kind: TransportKind) -> None:
    gate = asyncio.Event()

    async def delay(number: int) -> None:
        if number == 1:
            await gate.wait()

    async with connected(kind) as pair:
        faulty = wrap(pair.left, FaultPlan(delay=delay))
        await faulty.send(b"0")
        held = asyncio.ensure_future(faulty.send(b"1"))
        await round_trip(pair.left, pair.right)
        assert pair.right.counters.frames_received == 1
        assert not held.done()
        gate.set()
        await held
        assert [(await pair.right.recv()).header for _ in range(2)] == [b"0", b"1"]


async def test_fault_plan_damages_a_payload_that_nothing_checks(kind: TransportKind) -> None:
    async with connected(kind) as pair:
        faulty = wrap(pair.left, FaultPlan(corrupt_frame=0, corrupt_at=PROLOGUE_BYTES + 1 + 5))
        await faulty.send(b"h", [bytes(10)])
        assert bytes((await pair.right.recv()).payload) == bytes(5) + b"\xff" + bytes(4)


async def test_faulty_transport_wraps_both_ends(kind: TransportKind) -> None:
    transport = FaultyTransport(make_transport(kind, OPTIONS), FaultPlan(cut_before=0))
    try:
        listener = transport.listen(expecting(HELLO.mirrored()))
        address = await listener.start()
        left, right = await asyncio.gather(transport.connect(address, HELLO, 5.0), listener.accept())
        assert left.peer == right.peer.mirrored()
        with pytest.raises(LinkLostError, match="fault plan"):
            await right.send(b"h")
        with pytest.raises(LinkLostError):
            await asyncio.wait_for(left.recv(), 2.0)
    finally:
        await transport.close()
