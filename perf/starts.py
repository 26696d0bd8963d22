"""Cold starts in every order: how soon a mesh answers after its last process was started.

etcd, a router, a directory and two emulated stages, each a process of its own that is started once. First in as many
orders as asked for, a short gap between two starts; then with each of the five a long time after the others, all five
meshes at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from perf.clusters import HOME, emulated, parser
from perf.machine import LoadWatch
from perf.report import Cell, Goal, finish, table

from wavepp.cli.local.cluster import free_port
from wavepp.cli.local.processes import ManagedProcess
from wavepp.infra.etcd.server import EtcdServer
from wavepp.v1 import prefill_pb2, prefill_pb2_grpc

KINDS: Final = ("etcd", "router", "directory", "stage-0", "stage-1")
READY_WORDS: Final = {"router": "listening at", "directory": "ready at", "stage-0": "ready at", "stage-1": "ready at"}
GOAL_S: Final = 5.0
LATE_S: Final = 60.0
LIMIT_S: Final = 60.0
POLL_S: Final = 0.02


class Parts:
    """The processes of one mesh, each started when it is asked for."""

    def __init__(self, run_dir: Path, link: str) -> None:
        self.etcd = EtcdServer(run_dir / "etcd", run_dir / "etcd.log", fsync=False)
        # So that its port is known before the others start, and stays.
        self.etcd.start()
        self.etcd.stop()
        self.address = f"127.0.0.1:{free_port()}"
        common = ("--etcd-endpoints", self.etcd.endpoint)
        stage = (*common, "--stages", "2", "--model", emulated(run_dir, 2, 0.0), "--link", link)
        flags = {
            "router": (*common, "--bind-port", self.address.rpartition(":")[2]),
            "directory": common,
            "stage-0": (*stage, "--stage", "0"),
            "stage-1": (*stage, "--stage", "1"),
        }
        self.processes = {
            kind: ManagedProcess(kind, f"wavepp.{kind.partition('-')[0]}", arguments, run_dir / f"{kind}.log")
            for kind, arguments in flags.items()
        }

    async def start(self, kind: str) -> None:
        """Of etcd: until it answers."""
        if kind == "etcd":
            await asyncio.to_thread(self.etcd.start)
        else:
            await asyncio.to_thread(self.processes[kind].start)

    def says_ready(self, kind: str) -> bool:
        """Whether the process is through with its own start."""
        if kind == "etcd":
            return True
        return READY_WORDS[kind] in self.processes[kind].log_file.read_text(errors="replace")

    def ended(self) -> list[str]:
        """Those that were started and are no more."""
        return [process.name for process in self.processes.values() if process.started and not process.running]

    def stop(self) -> None:
        """Whatever runs."""
        for process in self.processes.values():
            process.stop()
        self.etcd.stop()


@dataclass(frozen=True, slots=True)
class Start:
    """A row. Seconds from the start of the last process: until it was through with its own start, and until a request
    was answered; `after_s` is between the two."""

    order: tuple[str, ...]
    gap_s: float
    own_s: float
    answered_s: float
    ended: tuple[str, ...]

    @property
    def after_s(self) -> float:
        """What the mesh needed beside the last process' own start."""
        return max(0.0, self.answered_s - self.own_s)

    def row(self) -> list[Cell]:
        """For the table."""
        times = (round(self.own_s, 2), round(self.answered_s, 2), round(self.after_s, 2))
        return [" ".join(self.order), round(self.gap_s, 2), *times, " ".join(self.ended) or "none"]


HEAD: Final = ("order", "gap s", "own start s", "answer s", "between s", "ended")


async def measure(parts: Parts, order: tuple[str, ...], gap_s: float, late_s: float) -> Start:
    """Start the processes, `gap_s` between two of them, `late_s` before the last."""
    for kind in order[:-1]:
        await parts.start(kind)
        await asyncio.sleep(gap_s)
    await asyncio.sleep(late_s - gap_s)
    last, began = order[-1], time.monotonic()
    own_s = answered_s = LIMIT_S

    async def watch_own() -> None:
        nonlocal own_s
        await parts.start(last)
        while True:
            if parts.says_ready(last):
                own_s = time.monotonic() - began
                return
            await asyncio.sleep(POLL_S)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            group.create_task(watch_own())
            await answer(parts.address)
            answered_s = time.monotonic() - began
    return Start(order, late_s, own_s, answered_s, tuple(parts.ended()))


async def answer(address: str) -> None:
    """Return when the router says that it serves, and a request was answered."""
    options = (("grpc.max_reconnect_backoff_ms", 100), ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        health, stub = health_pb2_grpc.HealthStub(channel), prefill_pb2_grpc.PrefillServiceStub(channel)
        request = prefill_pb2.PrefillRequest(token_ids=prefill_pb2.TokenIds(ids=range(200)), max_tokens=2)
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                found = await health.Check(health_pb2.HealthCheckRequest(), timeout=1.0)
                if found.status == health_pb2.HealthCheckResponse.SERVING:
                    await stub.Prefill(request, timeout=LIMIT_S)
                    return
            await asyncio.sleep(POLL_S)


@contextlib.asynccontextmanager
async def new_parts(link: str) -> AsyncIterator[Parts]:
    """Of a mesh of its own."""
    HOME.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="perf-", dir=HOME) as directory:
        parts = await asyncio.to_thread(Parts, Path(directory), link)
        try:
            yield parts
        finally:
            await asyncio.to_thread(parts.stop)


def orders(count: int, seed: int) -> list[tuple[str, ...]]:
    """So many of the 120, each kind equally often at each place as far as `count` is a multiple of five."""
    draw = random.Random(seed)
    found: list[tuple[str, ...]] = []
    everything = list(itertools.permutations(KINDS))
    if count >= len(everything):
        return everything
    while len(found) < count:
        base = draw.sample(KINDS, len(KINDS))
        turned = (tuple(base[shift:] + base[:shift]) for shift in range(len(base)))
        found += [order for order in turned if order not in found]
    return found[:count]


async def run(count: int, gap_s: float, late_s: float, link: str, seed: int) -> list[Start]:
    """The orders one after the other, then those who are late."""
    found = []
    for order in orders(count, seed):
        async with new_parts(link) as parts:
            found.append(await measure(parts, order, gap_s, gap_s))
            print(table(HEAD, [found[-1].row()]).splitlines()[-1], flush=True)
    if late_s:
        async with contextlib.AsyncExitStack() as stack:
            meshes = [await stack.enter_async_context(new_parts(link)) for _ in KINDS]
            rows = (
                # A few seconds apart, so that no two of them start at once.
                measure(parts, (*(kind for kind in KINDS if kind != last), last), 1.0, late_s + 5.0 * place)
                for place, (last, parts) in enumerate(zip(KINDS, meshes, strict=True))
            )
            found += await asyncio.gather(*rows)
    return found


def main() -> None:
    """The program."""
    made = parser(__doc__)
    made.add_argument("--orders", type=int, default=25, help="how many orders; 120 are all")
    made.add_argument("--gap", type=float, default=0.5, help="seconds between two starts")
    made.add_argument("--late", type=float, default=LATE_S, help="seconds that each is late once; 0: none is")
    made.add_argument("--link", choices=("ucx", "socket"), default="ucx")
    arguments = made.parse_args()
    if arguments.quick:
        arguments.orders, arguments.late = 1, 0.0
    watch = LoadWatch()
    found = asyncio.run(run(arguments.orders, arguments.gap, arguments.late, arguments.link, arguments.seed))
    print()
    print(table(HEAD, [start.row() for start in found]))
    goals = [
        Goal("processes that ended", sum(len(start.ended) for start in found), 0, ""),
        Goal("longest from the last one being started to an answer", max(s.answered_s for s in found), GOAL_S, "s"),
        Goal("longest from the last one being up to an answer", max(s.after_s for s in found), GOAL_S, "s"),
    ]
    results = [dict(zip(HEAD, start.row(), strict=True)) for start in found]
    finish("starts", vars(arguments), {"starts": results}, goals, watch.load())


if __name__ == "__main__":
    main()
