"""Fixed ports: patience with whoever has one for a moment longer, and who that is."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from wavepp.infra.addresses import join_host_port
from wavepp.infra.errors import StartupError

_log = logging.getLogger(__name__)

PORT_WAIT_S: Final = 10.0
"""A predecessor that still stops is gone by then, and so is a short connection that the system gave the port to."""
_POLL_S: Final = 0.1
_COMMAND_CHARS_MAX: Final = 100


class PortTakenError(StartupError):
    """Somebody else has the port."""


async def await_ports(wanted: Sequence[tuple[str, int]], stop: asyncio.Event, wait_s: float = PORT_WAIT_S) -> bool:
    """Wait until each of these, host and port, can be listened on; False when `stop` was set first.

    Ports of 0 and below are anybody's. Raises StartupError for a port that is not free after `wait_s`, which names who
    has it, and for a host that is not of this machine.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + wait_s
    for host, port in wanted:
        waits = False
        while port > 0 and not stop.is_set():
            try:
                await check_port(host, port)
                break
            except PortTakenError as error:
                if loop.time() >= ends:
                    raise
                if not waits:
                    _log.warning("%s; waiting for at most %.0f s", error, wait_s)
                waits = True
            await asyncio.sleep(_POLL_S)
    return not stop.is_set()


async def check_port(host: str, port: int) -> None:
    """Raises StartupError unless who sets SO_REUSEADDR, as all servers here do, can listen there; PortTakenError when
    that is for another socket. One address of a name is enough.
    """
    found: Sequence[tuple[Any, ...]] = ()
    failed: list[OSError] = []
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
    except OSError as error:
        failed.append(error)
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            failed.append(error)
    taken = [error for error in failed if error.errno == errno.EADDRINUSE]
    if not taken and len(failed) < len(found):
        return
    first = (taken or failed)[0]
    said = f"cannot listen on {join_host_port(host, port)}: {first.strerror or first}"
    if taken:
        raise PortTakenError(said + await asyncio.to_thread(_holder, port)) from first
    raise StartupError(said) from first


def _holder(port: int) -> str:
    """Who has the port, for the end of a message, as far as this process may know. Never fails."""
    inodes: dict[str, str] = {}
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/self/net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        for _, local, _, state, *_, inode in (line.split()[:10] for line in lines):
            if int(local.rpartition(":")[2], 16) == port:
                inodes[f"socket:[{inode}]"] = "listens there" if state == "0A" else "has a connection there"
    for process in Path("/proc").glob("[0-9]*"):
        try:
            for descriptor in os.scandir(process / "fd"):
                if (what := inodes.get(os.readlink(descriptor.path))) is not None:
                    command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                    return f" (process {process.name}, {command.strip()[:_COMMAND_CHARS_MAX]!r}, {what})"
        except OSError:
            continue  # ended meanwhile, or somebody else's
    return ""
