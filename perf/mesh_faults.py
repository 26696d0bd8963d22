"""What `perf.faults` does to the processes of a mesh, and to their network."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import grpc
from perf.networks import Container

from wavepp.cli.local.cluster import LocalCluster
from wavepp.cli.local.processes import ManagedProcess
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.keys import PipelineKeys
from wavepp.infra.etcd.messages import message
from wavepp.infra.leader import Leader
from wavepp.infra.rpc import open_channel

PAUSE_S: Final = 40.0
FULL_S: Final = 30.0
ALARM_TIMEOUT_S: Final = 5.0
AWAY_S: Final = 10.0
"""Longer than links are silent before they are lost."""
ENDS_WITHIN_S: Final = 5.0
DEVICES: Final = itertools.count(1)
KEYS: Final = PipelineKeys("default", "p0")


@dataclass(frozen=True, slots=True)
class Mesh:
    """What faults are done to."""

    cluster: LocalCluster
    etcd: EtcdClient
    containers: tuple[Container, ...]
    """Of the stages; empty when they are in none."""

    def network(self, stage: ManagedProcess) -> tuple[Container, Container]:
        """The container of a stage, and that of the one before it."""
        index = self.cluster.stages.index(stage)
        return self.containers[index], self.containers[index - 1]

    async def leader(self, key: str, processes: list[ManagedProcess]) -> ManagedProcess:
        """The process that leads at `key`."""
        held = await self.etcd.get(key)
        assert held is not None
        port = Leader.decode(held.value).address.rpartition(":")[2]
        return next(process for process in processes if port in process.arguments)

    async def victim(self, kind: str) -> ManagedProcess | None:
        """The leading router or directory, or the middle stage; None for etcd."""
        match kind:
            case "router":
                return await self.leader(KEYS.router, self.cluster.routers)
            case "directory":
                return await self.leader(KEYS.directory, self.cluster.directories)
            case "stage":
                return self.cluster.stages[len(self.cluster.stages) // 2]
        return None


async def kill(mesh: Mesh, victim: ManagedProcess | None) -> float:
    """kill -9, and started again a second later, as whoever supervises it would."""
    if victim is None:
        etcd = mesh.cluster.etcd
        assert etcd is not None
        os.kill(etcd.pid, signal.SIGKILL)
        await asyncio.sleep(1.0)
        await asyncio.to_thread(etcd.stop)
        await asyncio.to_thread(etcd.start)
        return time.monotonic()
    victim.signal(signal.SIGKILL)
    began = time.monotonic()
    await asyncio.to_thread(victim.wait_stopped, 5.0)
    await asyncio.sleep(1.0)
    victim.start()
    return began


async def stop(mesh: Mesh, victim: ManagedProcess | None) -> float:
    """SIGTERM, and started again when it has ended."""
    began = time.monotonic()
    if victim is None:
        etcd = mesh.cluster.etcd
        assert etcd is not None
        await asyncio.to_thread(etcd.stop)
        await asyncio.to_thread(etcd.start)
        return time.monotonic()
    victim.signal(signal.SIGTERM)
    await asyncio.to_thread(victim.wait_stopped, 60.0)
    victim.start()
    return began


async def pause(mesh: Mesh, victim: ManagedProcess | None) -> float:
    """SIGSTOP for 40 s. Others may serve meanwhile; for a stage or etcd the end of the pause is what counts."""
    pid = victim.child.pid if victim is not None and victim.child is not None else mesh.cluster.pids["etcd"]
    began = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(PAUSE_S)
    os.kill(pid, signal.SIGCONT)
    replaced = victim is not None and victim.module != "wavepp.stage"
    return began if replaced else time.monotonic()


def black_hole(seconds: float, *, link_only: bool) -> Fault:
    """Nothing arrives at the stage and nothing from it, or only what goes between it and the stage before."""

    async def fault(mesh: Mesh, victim: ManagedProcess | None) -> float:
        assert victim is not None
        own, before = mesh.network(victim)
        if link_only:
            own.black_hole_toward(before)
        else:
            own.black_hole()
        await asyncio.sleep(seconds)
        if link_only:
            own.heal_toward(before)
        else:
            own.heal()
        return time.monotonic()

    return fault


async def change_interface(mesh: Mesh, victim: ManagedProcess | None) -> float:
    """The stage's interface is taken away, and 10 s later it has another one with the same address. If the stage ends,
    it is started again a second later.
    """
    assert victim is not None
    own, _ = mesh.network(victim)
    own.disconnect()
    await asyncio.sleep(AWAY_S)
    own.connect(f"eth{next(DEVICES)}")
    began = time.monotonic()
    assert victim.child is not None
    with contextlib.suppress(subprocess.TimeoutExpired):
        await asyncio.to_thread(victim.child.wait, ENDS_WITHIN_S)
    if not victim.running:
        await asyncio.sleep(1.0)
        victim.start()
    return began


async def fill(mesh: Mesh, _etcd: ManagedProcess | None) -> float:
    """etcd says for 30 s that it has no space left: it takes no writes until an operator disarms that alarm."""
    async with open_channel(mesh.cluster.etcd_endpoints) as channel:
        await set_alarm(channel, "ACTIVATE")
        await asyncio.sleep(FULL_S)
        await set_alarm(channel, "DEACTIVATE")
    return time.monotonic()


async def set_alarm(channel: grpc.aio.Channel, action: str) -> None:
    """Arm or disarm etcd's alarm for space."""
    request, response = message("AlarmRequest"), message("AlarmResponse")
    call = channel.unary_unary(
        "/etcdserverpb.Maintenance/Alarm",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )
    await call(request(action=action, alarm="NOSPACE"), timeout=ALARM_TIMEOUT_S)


Fault = Callable[[Mesh, ManagedProcess | None], Awaitable[float]]
KINDS: Final = ("router", "directory", "stage", "etcd")
FAULTS: Final[dict[str, tuple[Fault, tuple[str, ...]]]] = {
    "kill -9": (kill, KINDS),
    "SIGTERM": (stop, KINDS),
    "SIGSTOP 40 s": (pause, KINDS),
    "NOSPACE 30 s": (fill, ("etcd",)),
}
"""What can be done, and to whom."""
NETWORK_FAULTS: Final[dict[str, tuple[Fault, tuple[str, ...]]]] = {
    "link black-holed 3 s": (black_hole(3.0, link_only=True), ("stage",)),
    "link black-holed 30 s": (black_hole(30.0, link_only=True), ("stage",)),
    "network black-holed 3 s": (black_hole(3.0, link_only=False), ("stage",)),
    "network black-holed 30 s": (black_hole(30.0, link_only=False), ("stage",)),
    "another interface": (change_interface, ("stage",)),
}
