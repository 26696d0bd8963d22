"""Network devices of this machine, and who has which address."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Device:
    """A network device. One that is taken away and made again has another index, whatever its name."""

    index: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (index {self.index})"


def local_addresses() -> dict[str, Device]:
    """This machine's IPv4 and IPv6 addresses, and the devices that have them; a device's first address comes first."""
    indices = {name: index for index, name in socket.if_nameindex()}
    found = {}
    for label, entries in psutil.net_if_addrs().items():
        name = label.partition(":")[0]  # a further IPv4 address may have a label: eth0:1
        for entry in entries:
            if entry.family in (socket.AF_INET, socket.AF_INET6):
                found[entry.address.partition("%")[0]] = Device(indices.get(name, 0), name)
    return found
