"""What clients notice when processes die, hang or stop: open-loop requests to a mesh with two of everything.

Two routers, two directories and the stages (emulated, or --model), a client with gRPC's standard retry policy over both
routers. Each fault: how many requests failed, the longest time without an answer, how long until answers came again,
and whether anything is left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
from perf.clusters import HOME, READY_TIMEOUT_S, emulated, model_info, model_path, parser, status
from perf.load import Prompts
from perf.machine import LoadWatch
from perf.report import Cell, Goal, finish, table

from wavepp.cli.local.cluster import ClusterSpec, LocalCluster
from wavepp.cli.local.processes import ManagedProcess
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.keys import PipelineKeys
from wavepp.infra.etcd.messages import message
from wavepp.infra.leader import Leader
from wavepp.infra.rpc import CHANNEL_OPTIONS, open_channel
from wavepp.v1 import prefill_pb2, prefill_pb2_grpc

STAGES: Final = 3
LEASE_TTL_S: Final = 10
PAUSE_S: Final = 40.0
FULL_S: Final = 30.0
ALARM_TIMEOUT_S: Final = 5.0
PROMPT_TOKENS: Final = 256
OUTPUT_TOKENS: Final = 4
REQUEST_TIMEOUT_S: Final = 120.0
BEFORE_S: Final = 3.0
SETTLED_S: Final = 3.0
AGAIN_TIMEOUT_S: Final = 90.0
QUIET_TIMEOUT_S: Final = 30.0
GOAL_AGAIN_S: Final = 5.0
KEYS: Final = PipelineKeys("default", "p0")
RETRIES: Final = {
    "maxAttempts": 5,
    "initialBackoff": "0.2s",
    "maxBackoff": "2s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


@dataclass(slots=True)
class Traffic:
    """Requests at a steady rate; when each was answered, and what failed. Times are monotonic seconds."""

    stub: prefill_pb2_grpc.PrefillServiceAsyncStub
    prompts: Prompts
    per_second: float
    answered: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    running: set[asyncio.Task[None]] = field(default_factory=set)

    async def flow(self) -> None:
        """Send for ever, however slowly answers come."""
        due = time.monotonic()
        while True:
            due = max(due + 1 / self.per_second, time.monotonic() - 1.0)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            task = asyncio.create_task(self._one())
            self.running.add(task)
            task.add_done_callback(self.running.discard)

    async def _one(self) -> None:
        message = prefill_pb2.PrefillRequest(token_bytes=self.prompts.fresh(PROMPT_TOKENS), max_tokens=OUTPUT_TOKENS)
        try:
            await self.stub.Prefill(message, timeout=REQUEST_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            self.failed.append(f"{error.code().name}: {error.details()}"[:120])
        else:
            self.answered.append(time.monotonic())

    def gap_s(self, since: float) -> float:
        """Longest time without an answer from `since` on, until now."""
        times = [since, *(t for t in self.answered if t >= since), time.monotonic()]
        return max(after - before for before, after in itertools.pairwise(times))


@dataclass(frozen=True, slots=True)
class Mesh:
    """What faults are done to."""

    cluster: LocalCluster
    etcd: EtcdClient

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


@dataclass(frozen=True, slots=True)
class Noticed:
    """A row: what clients noticed of a fault. `again_s`: from the fault, or from the end of a pause, to answers."""

    fault: str
    sent: int
    failed: int
    gap_s: float
    again_s: float
    left: str
    reasons: tuple[str, ...]

    def row(self) -> list[Cell]:
        """For the table."""
        return [self.fault, self.sent, self.failed, round(self.gap_s, 2), round(self.again_s, 2), self.left]


HEAD: Final = ("fault", "requests", "failed", "longest gap s", "again after s", "left behind")


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


async def fill(mesh: Mesh, _etcd: None) -> float:
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


Fault = Callable[[Mesh, Any], Awaitable[float]]
KINDS: Final = ("router", "directory", "stage", "etcd")
FAULTS: Final[dict[str, tuple[Fault, tuple[str, ...]]]] = {
    "kill -9": (kill, KINDS),
    "SIGTERM": (stop, KINDS),
    "SIGSTOP 40 s": (pause, KINDS),
    "NOSPACE 30 s": (fill, ("etcd",)),
}
"""What can be done, and to whom."""


async def measure(mesh: Mesh, traffic: Traffic, name: str, kind: str) -> Noticed:
    """Do it under way, and look until everything is as before."""
    traffic.answered.clear()
    traffic.failed.clear()
    flow = asyncio.create_task(traffic.flow())
    await asyncio.sleep(BEFORE_S)
    began = time.monotonic()
    since = await FAULTS[name][0](mesh, await mesh.victim(kind))
    again_s = await served_again(traffic, began, since)
    gap_s = traffic.gap_s(began)
    await asyncio.sleep(SETTLED_S)
    gap_s = max(gap_s, traffic.gap_s(began))
    flow.cancel()
    await asyncio.gather(flow, return_exceptions=True)
    if traffic.running:
        await asyncio.wait(set(traffic.running), timeout=REQUEST_TIMEOUT_S + 5)
    sent = len(traffic.answered) + len(traffic.failed)
    return Noticed(
        f"{name} of {kind}",
        sent,
        len(traffic.failed),
        gap_s,
        again_s,
        await left_behind(mesh),
        tuple(sorted(set(traffic.failed))),
    )


async def served_again(traffic: Traffic, began: float, since: float) -> float:
    """Seconds from `since` until answers came after the longest gap since `began`, and went on coming."""
    deadline = time.monotonic() + AGAIN_TIMEOUT_S
    while time.monotonic() < deadline:
        later = [t for t in traffic.answered if t >= began]
        recent = [t for t in later if t >= time.monotonic() - 1.0]
        if len(recent) >= traffic.per_second / 2:
            times = [began, *later]
            ends = max(itertools.pairwise(times), key=lambda pair: pair[1] - pair[0])[1]
            return max(0.0, ends - since)
        await asyncio.sleep(0.1)
    return AGAIN_TIMEOUT_S


async def left_behind(mesh: Mesh) -> str:
    """What is held although nobody asks for anything; "nothing" as soon as that is so."""
    ends, found = time.monotonic() + QUIET_TIMEOUT_S, ""
    while time.monotonic() < ends:
        with contextlib.suppress(grpc.RpcError):
            now = await asyncio.to_thread(status, mesh.cluster.address)
            router, held = now.router, [s.leases + s.waves_queued for s in now.stages]
            counts = (router.queued, router.admitting, router.running, router.waves_in_flight, now.directory.grants)
            if now.state == "serving" and not any(counts) and not any(held) and len(held) == len(mesh.cluster.stages):
                return "nothing"
            found = f"{now.state}; router {counts}; stages {held}"
        await asyncio.sleep(0.2)
    return found


@contextlib.asynccontextmanager
async def running(arguments: argparse.Namespace, directory: Path) -> AsyncIterator[tuple[Mesh, Traffic]]:
    """The mesh, and a client of both routers."""
    model = str(model_path(arguments.model)) if arguments.real else emulated(directory, arguments.stages, 20.0)
    spec = ClusterSpec(
        directory,
        model,
        arguments.stages,
        routers=2,
        directories=2,
        common_arguments=("--lease-ttl-s", str(LEASE_TTL_S), "--log-format", "json"),
    )
    service = json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": RETRIES}]})
    with LocalCluster(spec) as cluster:
        await asyncio.to_thread(cluster.wait_ready, READY_TIMEOUT_S)
        target = "ipv4:" + ",".join(cluster.addresses)
        options = (*CHANNEL_OPTIONS, ("grpc.service_config", service), ("grpc.lb_policy_name", "round_robin"))
        async with (
            grpc.aio.insecure_channel(target, options=options) as channel,
            EtcdClient([cluster.etcd_endpoints]) as etcd,
        ):
            prompts = Prompts(model_info(cluster.address).vocab_size, arguments.seed)
            stub = prefill_pb2_grpc.PrefillServiceStub(channel)
            yield Mesh(cluster, etcd), Traffic(stub, prompts, arguments.per_second)


async def run(arguments: argparse.Namespace) -> list[Noticed]:
    """All faults, one after the other, in one mesh."""
    HOME.mkdir(exist_ok=True)
    found = []
    with tempfile.TemporaryDirectory(prefix="perf-", dir=HOME) as directory:
        async with running(arguments, Path(directory)) as (mesh, traffic):
            for name in arguments.faults:
                for kind in (kind for kind in FAULTS[name][1] if kind in arguments.kinds):
                    noticed = await measure(mesh, traffic, name, kind)
                    print(table(HEAD, [noticed.row()]).splitlines()[-1], *noticed.reasons, sep="\n    ", flush=True)
                    found.append(noticed)
    return found


def main() -> None:
    """The program."""
    made = parser(__doc__)
    made.add_argument("--stages", type=int, default=STAGES)
    made.add_argument("--per-second", type=float, default=20.0)
    made.add_argument("--real", action="store_true", help="the real model instead of emulated stages")
    made.add_argument("--model", type=Path, help="checkpoint directory; SmolLM2-135M is fetched if absent")
    made.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    made.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    arguments = made.parse_args()
    if arguments.quick:
        arguments.faults, arguments.kinds = ["kill -9"], ["directory"]
    watch = LoadWatch()
    found = asyncio.run(run(arguments))
    print()
    print(table(HEAD, [noticed.row() for noticed in found]))
    goals = [Goal(f"{n.fault}: failed", n.failed, 0, "requests") for n in found]
    goals += [Goal(f"{n.fault}: again", n.again_s, GOAL_AGAIN_S, "s") for n in found]
    results = {n.fault: dict(zip(HEAD, n.row(), strict=True)) for n in found}
    finish("faults", vars(arguments), results, goals, watch.load())


if __name__ == "__main__":
    main()
