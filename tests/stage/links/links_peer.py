"""A peer in a process of its own: python links_peer.py ROLE KIND ADDRESS PROFILE. Connects and plays its role.

The role `listen` listens instead: it prints its address, takes one link and prints that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import cast

import uvloop
from links_support import HELLO, MIB, expecting, options

from wavepp.stage.links.base import Link
from wavepp.stage.links.registry import TransportKind, make_transport
from wavepp.stage.links.ucx_driver import UcxProfile


def die(_header: bytes, _nbytes: int) -> bytearray:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


async def flood(link: Link) -> None:
    """Once told to, send 64 MiB frames for ever."""
    await link.recv()
    payload = bytes(64 * MIB)
    while True:
        await link.send(b"flood", [payload])


async def abort_half_way(link: Link, allocated: asyncio.Event) -> None:
    """Give a frame up whose payload is coming in, and end the program."""
    receiving = asyncio.ensure_future(link.recv())
    await allocated.wait()
    link.abort("half way")
    await asyncio.wait({receiving})
    receiving.exception()


async def idle(link: Link) -> None:
    """Take frames until the link is lost."""
    while True:
        await link.recv()


async def echo(link: Link) -> None:
    """Send every frame back."""
    while True:
        frame = await link.recv()
        await link.send(frame.header, [frame.payload])


def tell_test(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def accept_one(kind: TransportKind, profile: UcxProfile) -> None:
    """Listen, take one link, and then its frames."""
    listener = make_transport(kind, options(), ucx_profile=profile).listen(expecting(HELLO.mirrored()))
    tell_test(await listener.start())
    link = await listener.accept()
    tell_test("accepted")
    await idle(link)


async def play(role: str, kind: TransportKind, address: str, profile: UcxProfile) -> None:
    if role == "listen":
        await accept_one(kind, profile)
        return
    link_options = options(heartbeat_s=0.1, silence_s=2.0)
    allocated = asyncio.Event()

    def tell(_header: bytes, nbytes: int) -> bytearray:
        allocated.set()
        return bytearray(nbytes)

    if role == "die_receiving":
        link_options = options(allocate=die)
    elif role == "abort_half_way":
        link_options = options(allocate=tell)
    link = await make_transport(kind, link_options, ucx_profile=profile).connect(address, HELLO, 5.0)
    if role == "flood":
        await flood(link)
    elif role == "abort_half_way":
        await abort_half_way(link, allocated)
    elif role == "echo":
        await echo(link)
    elif role == "leave":
        # End the program with a live link and a receive that is pending, and tidy up nothing.
        receiving = asyncio.ensure_future(link.recv())
        await link.send(b"leaving")
        await asyncio.wait({receiving}, timeout=0.01)
    else:
        await idle(link)


if __name__ == "__main__":
    uvloop.run(play(sys.argv[1], cast(TransportKind, sys.argv[2]), sys.argv[3], cast(UcxProfile, sys.argv[4])))
