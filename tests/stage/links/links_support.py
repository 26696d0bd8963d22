"""What the tests of links share: connected pairs, hellos, and peers in processes of their own."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wavepp.core.ids import Incarnation, PipelineEpoch, StageIndex
from wavepp.core.wire.hello import Hello
from wavepp.stage.links.base import LinkListener, LinkOptions, Transport
from wavepp.stage.links.hello_check import HelloCheck, require_mirror
from wavepp.stage.links.registry import TransportKind, make_transport
from wavepp.stage.links.session import LinkSession
from wavepp.stage.links.ucx_driver import UcxProfile

KINDS: tuple[TransportKind, ...] = ("socket", "ucx")
MIB = 1024 * 1024
TEST_S = 40.0
"""Ends a test that waits for ever; pytest's own limit cannot interrupt uvloop."""
SCHEME = {"socket": "tcp", "ucx": "ucx"}
PEER_PROGRAM = Path(__file__).with_name("links_peer.py")


def expecting(own: Hello) -> HelloCheck:
    """A check that accepts exactly the peer that `own` names."""

    def check(peer: Hello) -> Hello:
        require_mirror(own, peer)
        return own

    return check


HELLO = Hello(
    cluster="test",
    pipeline="p0",
    from_stage=StageIndex(0),
    to_stage=StageIndex(1),
    from_incarnation=Incarnation("left-1"),
    to_incarnation=Incarnation("right-1"),
    epoch=PipelineEpoch(7),
)
OPTIONS = LinkOptions(payload_bytes_max=64 * MIB)


def options(**changes: Any) -> LinkOptions:
    return replace(OPTIONS, **changes)


@dataclass
class Pair:
    """`left` connected to `right`; each on a transport of its own."""

    left: LinkSession
    right: LinkSession
    left_transport: Transport
    right_transport: Transport
    listener: LinkListener
    address: str


@asynccontextmanager
async def listening(
    kind: TransportKind, link_options: LinkOptions = OPTIONS, check: HelloCheck | None = None
) -> AsyncIterator[tuple[LinkListener, str]]:
    transport = make_transport(kind, link_options)
    try:
        listener = transport.listen(check or expecting(HELLO.mirrored()))
        async with asyncio.timeout(TEST_S):
            yield listener, await listener.start()
    finally:
        await transport.close()


@asynccontextmanager
async def transport_of(
    kind: TransportKind, link_options: LinkOptions = OPTIONS, profile: UcxProfile = "tcp"
) -> AsyncIterator[Transport]:
    transport = make_transport(kind, link_options, ucx_profile=profile)
    try:
        yield transport
    finally:
        await transport.close()


@asynccontextmanager
async def connected(
    kind: TransportKind, *, left: LinkOptions = OPTIONS, right: LinkOptions = OPTIONS
) -> AsyncIterator[Pair]:
    left_transport, right_transport = make_transport(kind, left), make_transport(kind, right)
    try:
        listener = right_transport.listen(expecting(HELLO.mirrored()))
        address = await listener.start()
        ends = await asyncio.gather(left_transport.connect(address, HELLO, 5.0), listener.accept())
        assert isinstance(ends[0], LinkSession)
        assert isinstance(ends[1], LinkSession)
        async with asyncio.timeout(TEST_S):
            yield Pair(ends[0], ends[1], left_transport, right_transport, listener, address)
    finally:
        await left_transport.close()
        await right_transport.close()


@asynccontextmanager
async def peer_process(
    role: str, kind: TransportKind, address: str, profile: str = "tcp"
) -> AsyncIterator[asyncio.subprocess.Process]:
    """links_peer.py in a process of its own; it is killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(PEER_PROGRAM),
        role,
        kind,
        address,
        profile,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def pattern(nbytes: int, seed: int) -> bytes:
    """Bytes in which a shift, a swap or a repeat of any part would show."""
    return (seed.to_bytes(4, "little") + os.urandom(252)) * (nbytes // 256) + bytes(nbytes % 256)
