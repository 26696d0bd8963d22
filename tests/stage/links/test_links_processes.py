"""Links between processes: peers that die, freeze or leave; what a process costs while its link is idle."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest
import uvloop
from links_support import (
    HELLO,
    KINDS,
    MIB,
    connected,
    expecting,
    listening,
    options,
    pattern,
    peer_process,
    transport_of,
)

from wavepp.stage.links.errors import LinkLostError, LossReason
from wavepp.stage.links.registry import TransportKind, make_transport
from wavepp.stage.links.ucx_driver import UcxProfile

LOST_WITHIN_S = 2.0
START_S = 20.0
"""For a process to start and connect, on a machine that is busy with other things."""


@pytest.fixture(scope="module")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy()


@pytest.mark.parametrize("kind", KINDS)
async def test_peer_killed_while_it_sends_is_lost_at_once_and_memory_is_bounded(kind: TransportKind) -> None:
    victims: list[int] = []

    def allocate(_header: bytes, nbytes: int) -> bytearray:
        # The header is here and the payload on its way: at most what the kernel buffers is still to come.
        os.kill(victims[-1], signal.SIGKILL)
        return bytearray(nbytes)

    resident = []
    async with listening(kind, options(allocate=allocate)) as (listener, address):
        for _ in range(3):
            async with peer_process("flood", kind, address) as peer:
                victims.append(peer.pid)
                link = await asyncio.wait_for(listener.accept(), START_S)
                with pytest.raises(LinkLostError) as caught:
                    await asyncio.wait_for(asyncio.gather(link.send(b"go"), link.recv()), LOST_WITHIN_S)
                assert caught.value.reason is LossReason.RESET
                assert link.counters.frames_received == 0
            del link
            gc.collect()
            resident.append(psutil.Process().memory_info().rss)
    # One payload is 64 MiB; a leak of each would show as two more of them.
    assert resident[-1] - resident[0] < 64 * MIB


@pytest.mark.parametrize("kind", KINDS)
async def test_peer_killed_while_it_receives_is_lost_at_once(kind: TransportKind) -> None:
    async with listening(kind) as (listener, address), peer_process("die_receiving", kind, address) as peer:
        link = await asyncio.wait_for(listener.accept(), START_S)
        with pytest.raises(LinkLostError) as caught:
            await asyncio.wait_for(link.send(b"h", [bytes(64 * MIB)]), LOST_WITHIN_S)
        assert caught.value.reason is LossReason.RESET
        assert await peer.wait() == -signal.SIGKILL


@pytest.mark.parametrize("kind", KINDS)
async def test_killed_idle_peer_is_lost_at_once(kind: TransportKind) -> None:
    async with listening(kind) as (listener, address), peer_process("idle", kind, address) as peer:
        link = await asyncio.wait_for(listener.accept(), START_S)
        receiving = asyncio.ensure_future(link.recv())
        peer.kill()
        with pytest.raises(LinkLostError) as caught:
            await asyncio.wait_for(receiving, LOST_WITHIN_S)
        assert caught.value.reason is LossReason.RESET


@pytest.mark.parametrize(("kind", "profile"), [("socket", "tcp"), ("ucx", "tcp"), ("ucx", "shm")])
async def test_port_of_a_killed_listener_with_a_link_can_be_had_at_once(
    kind: TransportKind, profile: UcxProfile
) -> None:
    async with transport_of(kind, profile=profile) as ours, peer_process("listen", kind, "", profile) as peer:
        assert peer.stdout is not None
        address = (await asyncio.wait_for(peer.stdout.readline(), START_S)).decode().strip()
        port = int(address.rpartition(":")[2])
        # Accepted before the link is, and not closed by us: what is left of it is at the port until this test ends.
        with socket.create_connection(("127.0.0.1", port), LOST_WITHIN_S):
            link = await ours.connect(address, HELLO, START_S)
            assert await asyncio.wait_for(peer.stdout.readline(), START_S) == b"accepted\n"
            peer.kill()
            with pytest.raises(LinkLostError):
                await asyncio.wait_for(link.recv(), LOST_WITHIN_S)
            await peer.wait()
            assert await ours.listen(expecting(HELLO.mirrored()), port=port).start() == address


@pytest.mark.parametrize("sending", [False, True], ids=["idle", "sending"])
@pytest.mark.parametrize("kind", KINDS)
async def test_frozen_peer_is_lost_after_the_silence(kind: TransportKind, sending: bool) -> None:
    async with (
        listening(kind, options(heartbeat_s=0.1, silence_s=0.5)) as (listener, address),
        peer_process("idle", kind, address) as peer,
    ):
        link = await asyncio.wait_for(listener.accept(), START_S)
        os.kill(peer.pid, signal.SIGSTOP)
        frozen_at = time.monotonic()
        # A payload that no buffer on the way takes as a whole: the send is pending when the loss comes.
        pending = link.send(b"h", [bytes(64 * MIB)]) if sending else link.recv()
        with pytest.raises(LinkLostError) as caught:
            await asyncio.wait_for(pending, 5.0)
        assert caught.value.reason is LossReason.SILENT
        assert 0.3 < time.monotonic() - frozen_at < 2.0
        await asyncio.wait_for(link.close(), 2.0)


@pytest.mark.parametrize("kind", KINDS)
async def test_stall_of_the_own_loop_is_not_taken_for_silence(kind: TransportKind) -> None:
    async with (
        listening(kind, options(heartbeat_s=0.1, silence_s=0.5)) as (listener, address),
        peer_process("idle", kind, address),
    ):
        link = await asyncio.wait_for(listener.accept(), START_S)
        time.sleep(0.8)  # noqa: ASYNC251  # as a step that holds the GIL does; the peer's heartbeats pile up
        await link.send(b"still here")
        done, _ = await asyncio.wait({link.closed}, timeout=0.3)
        assert not done


async def test_shared_memory_profile_carries_frames_and_reports_a_killed_peer() -> None:
    transport = make_transport("ucx", options(), ucx_profile="shm")
    try:
        listener = transport.listen(expecting(HELLO.mirrored()))
        address = await listener.start()
        async with peer_process("echo", "ucx", address, profile="shm") as peer:
            link = await asyncio.wait_for(listener.accept(), START_S)
            for nbytes in (0, 1000, MIB, 5 * MIB):
                payload = pattern(nbytes, nbytes)
                await link.send(b"h", [payload])
                assert bytes((await link.recv()).payload) == payload
            peer.kill()
            with pytest.raises(LinkLostError) as caught:
                await asyncio.wait_for(link.recv(), LOST_WITHIN_S)
            assert caught.value.reason is LossReason.RESET
    finally:
        await transport.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_process_that_tidies_up_nothing_ends_cleanly(kind: TransportKind) -> None:
    async with listening(kind) as (listener, address), peer_process("leave", kind, address) as peer:
        link = await asyncio.wait_for(listener.accept(), START_S)
        assert (await link.recv()).header == b"leaving"
        with pytest.raises(LinkLostError):
            await asyncio.wait_for(link.recv(), 5.0)
        assert await asyncio.wait_for(peer.wait(), 10.0) == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_process_that_gave_up_a_transfer_half_way_ends_cleanly(kind: TransportKind) -> None:
    async with listening(kind) as (listener, address), peer_process("abort_half_way", kind, address) as peer:
        link = await asyncio.wait_for(listener.accept(), START_S)
        with pytest.raises(LinkLostError):
            await asyncio.wait_for(link.send(b"h", [bytes(64 * MIB)]), LOST_WITHIN_S)
        assert await asyncio.wait_for(peer.wait(), 10.0) == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_idle_link_does_not_spin(kind: TransportKind) -> None:
    async with connected(kind) as pair:
        receiving = asyncio.ensure_future(pair.right.recv())
        before = time.process_time()
        await asyncio.wait({receiving}, timeout=1.0)
        # Two ends with a pending receive; a spinning loop would use all of the second.
        assert time.process_time() - before < 0.2
        receiving.cancel()


@pytest.mark.parametrize("module", ["registry", "socket", "session", "ucx"])
def test_importing_a_module_does_not_load_ucxx(module: str) -> None:
    script = f"import sys, wavepp.stage.links.{module}; sys.exit('ucxx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=30, check=False).returncode == 0


def test_socket_transport_does_not_load_ucxx() -> None:
    script = (
        "import asyncio, sys\n"
        "from wavepp.stage.links.base import LinkOptions\n"
        "from wavepp.stage.links.registry import make_transport\n"
        "async def main():\n"
        "    await make_transport('socket', LinkOptions(payload_bytes_max=1)).close()\n"
        "asyncio.run(main())\n"
        "sys.exit('ucxx' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=30, check=False).returncode == 0
