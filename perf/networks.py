"""Containers of a kind, for faults of networks: namespaces that hang on a bridge of this machine. Needs `ip` and root."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from contextlib import ExitStack
from typing import Final, Self

SUBNET: Final = "198.18.{}.{}"
"""Of the addresses that are set aside for measurements; nobody routes them."""
NAME_CHARACTERS: Final = 11
"""Of a device; the kernel takes 15."""
COMMAND_TIMEOUT_S: Final = 10.0


class NetworkUnavailableError(Exception):
    """This machine, or this user, cannot make namespaces and bridges; the text says why."""


def ip(*arguments: str) -> str:
    """Run `ip`; what it prints. Raises NetworkUnavailableError."""
    program = shutil.which("ip") or "/usr/sbin/ip"
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True
        )
    except FileNotFoundError:
        raise NetworkUnavailableError("there is no command `ip` (package iproute2)") from None
    except subprocess.CalledProcessError as error:
        raise NetworkUnavailableError(f"ip {' '.join(arguments)}: {error.stderr.strip()}") from error
    return done.stdout


class Bridge:
    """A network of this machine, on which it has the address `host`. Use as `with Bridge() as bridge`: at the end
    nothing is left of it and of its containers. Raises NetworkUnavailableError.
    """

    def __init__(self) -> None:
        number = os.getpid()
        self.name = f"wp{number % 10**8}"
        self._net = number % 254 + 1
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
        self._undo.callback(made.remove)
        made.create()
        return made


class Container:
    """A network namespace with one interface on the bridge, as Docker makes them for containers."""

    def __init__(self, bridge: Bridge, number: int) -> None:
        self._bridge = bridge
        self._namespace = f"{bridge.name}-{number}"
        self._port = f"{bridge.name}p{number}"
        self.address = bridge.address(number)

    @property
    def launcher(self) -> tuple[str, ...]:
        """What makes a command run inside."""
        return (shutil.which("ip") or "/usr/sbin/ip", "netns", "exec", self._namespace)

    def create(self) -> None:
        """With a loopback device, and connected."""
        ip("netns", "add", self._namespace)
        ip("-n", self._namespace, "link", "set", "lo", "up")
        self.connect()

    def remove(self) -> None:
        """Whoever still runs inside has no network any more."""
        ip("netns", "del", self._namespace)

    def connect(self, device: str = "eth0", address: str = "") -> None:
        """Give it an interface, with the address that it always had or another one."""
        inside = ("peer", "name", device, "netns", self._namespace)
        ip("link", "add", self._port, "type", "veth", *inside)
        ip("link", "set", self._port, "master", self._bridge.name, "up")
        ip("-n", self._namespace, "addr", "add", f"{address or self.address}/24", "dev", device)
        ip("-n", self._namespace, "link", "set", device, "up")
        ip("-n", self._namespace, "route", "add", "default", "via", self._bridge.host)

    def disconnect(self) -> None:
        """Take the interface away, with its addresses and routes."""
        ip("link", "del", self._port)

    def black_hole(self) -> None:
        """Nothing arrives any more in either direction, and nobody is told."""
        ip("link", "set", self._port, "nomaster")

    def heal(self) -> None:
        """The end of `black_hole`."""
        ip("link", "set", self._port, "master", self._bridge.name)
