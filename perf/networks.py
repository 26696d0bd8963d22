"""Containers of a kind, for faults of networks: namespaces on a bridge of this machine. Needs `ip` and root."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from itertools import count
from typing import Final, Self

SUBNET: Final = "198.18.{}.{}"
"""Of the addresses that are set aside for measurements; nobody routes them."""
NOBODY: Final = "02:00:00:00:00:01"
"""A hardware address that nothing has."""
COMMAND_TIMEOUT_S: Final = 10.0
_NUMBERS: Final = count()
_SAY_HELLO: Final = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"


class NetworkUnavailableError(Exception):
    """This machine, or this user, cannot make namespaces and bridges, or a firewall is in between; the text says it."""


def run(*command: str) -> None:
    """Raises NetworkUnavailableError."""
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True)
    except FileNotFoundError:
        raise NetworkUnavailableError(f"there is no command {command[0]} (package iproute2)") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["it said nothing"]
        raise NetworkUnavailableError(f"{' '.join(command)}: {lines[-1]}") from error


def ip(*arguments: str) -> None:
    """Run `ip`. Raises NetworkUnavailableError."""
    run(_program(), *arguments)


def _program() -> str:
    return shutil.which("ip") or "/usr/sbin/ip"


class Bridge:
    """A network of this machine, on which it has the address `host`. Use as `with Bridge() as bridge`: at the end
    nothing is left of it and of its containers. Raises NetworkUnavailableError. UCX does not speak over the bridge
    itself: stages belong into containers.
    """

    def __init__(self) -> None:
        # A device's name has at most 15 characters.
        self.name = f"wp{os.getpid() % 10**7}{next(_NUMBERS) % 16:x}"
        self._net = os.getpid() % 254 + 1
        self.host = self.address(1)
        self._last = 1
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            ip("link", "add", self.name, "type", "bridge")
            undo.callback(ip, "link", "del", self.name)
            ip("addr", "add", f"{self.host}/24", "dev", self.name)
            ip("link", "set", self.name, "up")
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._undo.close()

    def address(self, number: int) -> str:
        """Of this network."""
        return SUBNET.format(self._net, number)

    def container(self) -> Container:
        """A new one, connected. Goes with the bridge."""
        self._last += 1
        made = Container(self, self._last)
        ip("netns", "add", made.namespace)
        self._undo.callback(ip, "netns", "del", made.namespace)
        ip("-n", made.namespace, "link", "set", "lo", "up")
        made.connect()
        self._undo.callback(made.disconnect)
        with socket.create_server((self.host, 0)) as server:
            run(*made.launcher, sys.executable, "-S", "-c", _SAY_HELLO, self.host, str(server.getsockname()[1]))
        return made


class Container:
    """A network namespace with one interface on the bridge, as Docker makes them for containers."""

    def __init__(self, bridge: Bridge, number: int) -> None:
        self._bridge = bridge
        self._port = f"{bridge.name}p{number}"
        self._device = ""
        self.namespace = f"{bridge.name}-{number}"
        self.address = bridge.address(number)

    @property
    def launcher(self) -> tuple[str, ...]:
        """What makes a command run inside, as the process that is started."""
        return (_program(), "netns", "exec", self.namespace)

    def connect(self, device: str = "eth0", address: str = "") -> None:
        """Give it an interface, with the address that it always had or another one."""
        self._device = device
        ip("link", "add", self._port, "type", "veth", "peer", "name", device, "netns", self.namespace)
        ip("link", "set", self._port, "master", self._bridge.name, "up")
        ip("-n", self.namespace, "addr", "add", f"{address or self.address}/24", "dev", device)
        ip("-n", self.namespace, "link", "set", device, "up")
        ip("-n", self.namespace, "route", "add", "default", "via", self._bridge.host)

    def disconnect(self) -> None:
        """Take the interface away, with its addresses and routes; if it is there."""
        with suppress(NetworkUnavailableError):
            ip("link", "del", self._port)

    def black_hole(self) -> None:
        """Nothing arrives any more in either direction, and nobody is told."""
        ip("link", "set", self._port, "nomaster")

    def heal(self) -> None:
        """The end of `black_hole`."""
        ip("link", "set", self._port, "master", self._bridge.name)

    def black_hole_toward(self, other: Container) -> None:
        """Nothing arrives any more between the two, and nobody is told; all else does."""
        for one, two in ((self, other), (other, self)):
            ip("-n", one.namespace, "neigh", "replace", two.address, "lladdr", NOBODY, "dev", one._device)

    def heal_toward(self, other: Container) -> None:
        """The end of `black_hole_toward`."""
        for one, two in ((self, other), (other, self)):
            ip("-n", one.namespace, "neigh", "del", two.address, "dev", one._device)
