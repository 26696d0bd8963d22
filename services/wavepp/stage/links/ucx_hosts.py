"""Hosts, for UCX, which knows devices and ports: addresses and devices of this machine, and a listener's place."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import platform
import re
import socket as net
import stat
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from wavepp.stage.devices import local_addresses

_log = logging.getLogger(__name__)

_EPOLL_CTL_ADD: Final = 1
_EPOLL_TARGET: Final = re.compile(r"tfd:\s*(\d+) events:\s*([0-9a-f]+) data:\s*([0-9a-f]+)")


async def ipv4_addresses(host: str) -> list[IPv4Address]:
    """At least one. Raises OSError when `host` has none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, family=net.AF_INET, type=net.SOCK_STREAM)
    return sorted({IPv4Address(address[0]) for *_, address in found})


async def devices_of(host: str) -> tuple[str, ...]:
    """The network devices of this machine that have the IPv4 addresses of `host`; none when they are not its own."""
    try:
        wanted = {str(address) for address in await ipv4_addresses(host)}
    except OSError:
        return ()
    own = {address: device for address, device in local_addresses().items() if ":" not in address}
    found = {device.name: address for address, device in own.items() if address in wanted}
    for name, address in found.items():
        first = next(each for each, device in own.items() if device.name == name)
        if first not in wanted:
            _log.warning("UCX receives at %s, the first address of %s, beside %s", first, name, address)
    return tuple(found)


def replace_listener(port: int, own: net.socket) -> None:
    """Put `own`, which listens where it should, in the place of UCX's socket, which listens at `port` everywhere.

    UCX has no handle for its socket, so its descriptor is looked for. UCX's thread waits for that descriptor with
    epoll, and has to be told to wait for the new socket behind it. Raises OSError; nothing is replaced then.
    """
    descriptor = _listening_descriptor(port)
    for epoll in _descriptors():
        for target, events, data in _waited_for(epoll):
            if target == descriptor:
                os.dup2(own.fileno(), descriptor, inheritable=False)  # which ends the wait for the former one
                _wait_for(epoll, descriptor, events, data)
                return
    raise OSError("UCX does not wait for its socket in a way that is known here")


def _descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


def _listening_descriptor(port: int) -> int:
    for descriptor in _descriptors():
        try:
            if not stat.S_ISSOCK(os.stat(descriptor).st_mode):
                continue
            found = net.socket(fileno=os.dup(descriptor))
        except OSError:
            continue  # closed meanwhile
        with found:
            listens = found.family == net.AF_INET and found.getsockopt(net.SOL_SOCKET, net.SO_ACCEPTCONN)
            if listens and found.getsockname() == ("0.0.0.0", port):
                return descriptor
    raise OSError(f"no socket of this process listens on port {port} of all addresses")


def _waited_for(epoll: int) -> list[tuple[int, int, int]]:
    """Descriptor, events and user data of all that an epoll descriptor waits for; nothing for another descriptor."""
    try:
        lines = Path(f"/proc/self/fdinfo/{epoll}").read_text().splitlines()
    except OSError:
        return []  # closed meanwhile
    found = [_EPOLL_TARGET.match(line) for line in lines]
    return [(int(each[1]), int(each[2], 16), int(each[3], 16)) for each in found if each]


class _EpollEvent(ctypes.Structure):
    _pack_ = 1 if platform.machine() == "x86_64" else 0
    _fields_ = (("events", ctypes.c_uint32), ("data", ctypes.c_uint64))


def _wait_for(epoll: int, descriptor: int, events: int, data: int) -> None:
    # Python's own epoll puts the descriptor where UCX has its data.
    event = _EpollEvent(events, data)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.epoll_ctl(epoll, _EPOLL_CTL_ADD, descriptor, ctypes.byref(event)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
