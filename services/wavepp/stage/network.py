"""Whether the network that a stage began with is still there, and what follows when it is not.

UCX learns the devices of a machine once a process: over one that comes later no link is made, from neither side. And an
address that was published is found by nobody once the machine has another one instead. Only another process helps then.
What a neighbour does is no reason to end: starting again costs loading the model.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from wavepp.core.errors import WaveppError
from wavepp.stage.devices import Device, local_addresses
from wavepp.stage.worker import StageWorker

_log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
RESOLVE_TIMEOUT_S: Final = 1.0
_ANY_PORT: Final = 9


class NetworkChangedError(WaveppError):
    """The stage cannot be reached, or make links, any more, and would be if it were started again."""


class Network:
    """This machine's network as it was when this was made, to be compared with what it is now."""

    def __init__(
        self, own: Iterable[str], *, devices_fixed: bool, look: Callable[[], Mapping[str, Device]] = local_addresses
    ) -> None:
        """`own`: addresses under which others reach this process; those that are not the machine's (translated ones)
        are left out. `devices_fixed`: links go only over devices that are there now.
        """
        self._look = look
        self._began = dict(look())
        self._own = [address for address in own if address in self._began]
        self._devices = frozenset(self._began.values()) if devices_fixed else None

    @property
    def reachable(self) -> bool:
        """Whether it began with an address of its own."""
        return bool(self._own)

    def gone(self) -> str:
        """Why nobody finds this process under its address any more; empty while somebody may, or the machine has no
        new address that it could have instead.
        """
        now = self._look()
        lost = [address for address in self._own if address not in now]
        came = [f"{a} on {d}" for a, d in now.items() if a not in self._began and _is_routed(a)]
        if not lost or not came:
            return ""
        return f"the address {lost[0]} is gone from this machine, which has {', '.join(came)} now"

    def unlinkable(self, sources: Iterable[str]) -> str:
        """Why no link can be made over the devices of the own addresses and of `sources`; empty if one can, or if they
        have no device now.
        """
        now = self._look()
        for address in (*self._own, *sources):
            device = now.get(address)
            if self._devices is not None and device is not None and device not in self._devices:
                return f"{address} is on {device} now, which was not there when UCX was initialised"
        return ""


def _is_routed(address: str) -> bool:
    found = ip_address(address)
    return not (found.is_loopback or found.is_link_local)


async def resolve(host: str) -> list[str]:
    """The addresses of a name, or of an address; none when there are none, or not soon."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_TIMEOUT_S):
            found = await loop.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)
    except (OSError, TimeoutError):
        return []
    return [str(entry[4][0]) for entry in found]


async def addresses_of(link_address: str) -> list[str]:
    """Of the host of a neighbour's address for links; none when it has none."""
    try:
        host = urlsplit(link_address).hostname
    except ValueError:
        return []
    return await resolve(host) if host else []


def sources_toward(addresses: Iterable[str]) -> list[str]:
    """The own addresses from which this machine would speak to these. Sends nothing."""
    found = []
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((address, _ANY_PORT))
            except OSError:
                continue
            found.append(str(probe.getsockname()[0]))
    return found


async def watch_network(
    network: Network, worker: StageWorker, set_ready: Callable[[bool], Awaitable[None]], *, look_s: float = LOOK_S
) -> None:
    """Watch for ever; a task of the process. The stage is not ready while its links do not come up.

    Raises NetworkChangedError when something is broken, and what explains it was seen twice running: while an interface
    is being set up it may be seen without its addresses.
    """
    neighbours, ready, seen = worker.neighbours, True, ""
    next_address, next_addresses = "", list[str]()
    while True:
        await asyncio.sleep(look_s)
        if neighbours.next_address != next_address:
            # Once, while name servers answer: they may be out of reach when it matters.
            next_address = neighbours.next_address
            next_addresses = await addresses_of(next_address)
        links_down = not neighbours.up
        changed = ""
        if links_down or worker.control.closed:
            changed = network.gone()
        if links_down and not changed:
            changed = network.unlinkable(sources_toward(next_addresses))
        if changed and changed == seen:
            raise NetworkChangedError(f"the network has changed, and this stage must be started again: {changed}")
        seen = changed
        trouble = changed or neighbours.trouble
        if ready is bool(trouble):
            ready = not trouble
            _log.log(*((logging.INFO, "ready again") if ready else (logging.WARNING, f"not ready: {trouble}")))
            await set_ready(ready)
