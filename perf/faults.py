"""What clients notice when processes die, hang or stop, or their network does: open-loop requests to a mesh with two of
everything.

Two routers, two directories and the stages (emulated, or --model), a client with gRPC's standard retry policy over both
routers. Each fault: how many requests failed, the longest time without an answer, how long until answers came again,
and whether anything is left behind. Faults of networks (--faults network) need root and `ip`: each stage is then in a
network namespace of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc
from perf.clusters import HOME, READY_TIMEOUT_S, emulated, model_info, model_path, parser, status
from perf.load import Prompts
from perf.machine import LoadWatch
from perf.mesh_faults import FAULTS, KINDS, NETWORK_FAULTS, Mesh
from perf.networks import Bridge, NetworkUnavailableError
from perf.report import Cell, Goal, finish, table

from wavepp.cli.local.cluster import ClusterSpec, LocalCluster
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.rpc import CHANNEL_OPTIONS
from wavepp.v1 import prefill_pb2, prefill_pb2_grpc

STAGES: Final = 3
LEASE_TTL_S: Final = 10
PROMPT_TOKENS: Final = 256
OUTPUT_TOKENS: Final = 4
REQUEST_TIMEOUT_S: Final = 120.0
BEFORE_S: Final = 3.0
SETTLED_S: Final = 3.0
AGAIN_TIMEOUT_S: Final = 90.0
QUIET_TIMEOUT_S: Final = 30.0
GOAL_AGAIN_S: Final = 5.0
ALL_FAULTS: Final = {**FAULTS, **NETWORK_FAULTS}
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


async def measure(mesh: Mesh, traffic: Traffic, name: str, kind: str) -> Noticed:
    """Do it under way, and look until everything is as before."""
    traffic.answered.clear()
    traffic.failed.clear()
    flow = asyncio.create_task(traffic.flow())
    await asyncio.sleep(BEFORE_S)
    began = time.monotonic()
    since = await ALL_FAULTS[name][0](mesh, await mesh.victim(kind))
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
async def running(
    arguments: argparse.Namespace, directory: Path, bridge: Bridge | None
) -> AsyncIterator[tuple[Mesh, Traffic]]:
    """The mesh, on the bridge if there is one, and a client of both routers."""
    containers = tuple(bridge.container() for _ in range(arguments.stages)) if bridge is not None else ()
    model = str(model_path(arguments.model)) if arguments.real else emulated(directory, arguments.stages, 20.0)
    spec = ClusterSpec(
        directory,
        model,
        arguments.stages,
        routers=2,
        directories=2,
        common_arguments=("--lease-ttl-s", str(LEASE_TTL_S), "--log-format", "json"),
        stage_arguments=("--link", arguments.link),
        per_stage={i: ("--bind-host", made.address) for i, made in enumerate(containers)},
        host=bridge.host if bridge is not None else "127.0.0.1",
        launchers={f"stage-{i}": made.launcher for i, made in enumerate(containers)},
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
            yield Mesh(cluster, etcd, containers), Traffic(stub, prompts, arguments.per_second)


async def run(arguments: argparse.Namespace) -> list[Noticed]:
    """All faults, one after the other, in one mesh. Raises NetworkUnavailableError."""
    HOME.mkdir(exist_ok=True)
    of_network = arguments.faults[0] in NETWORK_FAULTS
    found = []
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="perf-", dir=HOME))
        bridge = stack.enter_context(Bridge()) if of_network else None
        async with running(arguments, Path(directory), bridge) as (mesh, traffic):
            for name in arguments.faults:
                for kind in (kind for kind in ALL_FAULTS[name][1] if kind in arguments.kinds):
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
    made.add_argument("--link", choices=["ucx", "socket"], default="ucx")
    made.add_argument("--faults", nargs="+", choices=[*FAULTS, "network"], default=list(FAULTS))
    made.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    arguments = made.parse_args()
    if arguments.quick:
        arguments.faults, arguments.kinds = ["kill -9"], ["directory"]
    elif "network" in arguments.faults:
        arguments.faults = list(NETWORK_FAULTS)
    watch = LoadWatch()
    try:
        found = asyncio.run(run(arguments))
    except NetworkUnavailableError as error:
        raise SystemExit(f"no namespaces here: {error}") from None
    print()
    print(table(HEAD, [noticed.row() for noticed in found]))
    goals = [Goal(f"{n.fault}: failed", n.failed, 0, "requests") for n in found]
    goals += [Goal(f"{n.fault}: again", n.again_s, GOAL_AGAIN_S, "s") for n in found]
    results = {n.fault: dict(zip(HEAD, n.row(), strict=True)) for n in found}
    finish("faults", vars(arguments), results, goals, watch.load())


if __name__ == "__main__":
    main()
