"""What the processes cost when there is nothing to do, and that work leaves no memory behind."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

from mesh_support import VOCAB, MeshClient
from wavepp.cli.local.cluster import LocalCluster

WINDOW_S = 5.0
CORE_SHARE_MAX = 0.02
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
WARM_UP = 300
REQUESTS = 1000
CONCURRENT = 16
GROWTH_MAX_BYTES = 5_000_000


def cpu_s(pid: int) -> float:
    """Seconds of a core that the process has used, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


async def test_idle_processes_use_next_to_nothing(mesh: LocalCluster, client: MeshClient) -> None:
    await client.answer(range(500), 3)
    await client.quiet()
    assert mesh.etcd is not None
    pids = {p.name: p.child.pid for p in mesh.processes if p.child} | {"etcd": mesh.etcd.pid}
    began, before = time.monotonic(), {name: cpu_s(pid) for name, pid in pids.items()}
    # A measurement over a window of time, not a wait for something.
    await asyncio.sleep(WINDOW_S)
    window_s = time.monotonic() - began
    used = {name: (cpu_s(pid) - before[name]) / window_s for name, pid in pids.items()}
    print({name: f"{share:.2%}" for name, share in used.items()})  # noqa: T201 - a figure for the reader of a failure
    assert len(used) == 5
    assert max(used.values()) < CORE_SHARE_MAX, used


async def test_memory_is_flat_over_a_thousand_requests(client: MeshClient) -> None:
    rng = random.Random(11)
    await small_requests(client, rng, WARM_UP)
    before = await client.quiet()
    await small_requests(client, rng, REQUESTS)
    after = await client.quiet()
    growth = {s.stage: t.rss_bytes - s.rss_bytes for s, t in zip(before.stages, after.stages, strict=True)}
    print(growth)  # noqa: T201
    assert all(t.rss_bytes > 0 for t in after.stages)
    assert max(growth.values()) < GROWTH_MAX_BYTES, growth


async def small_requests(client: MeshClient, rng: random.Random, count: int) -> None:
    gate = asyncio.Semaphore(CONCURRENT)

    async def one() -> None:
        async with gate:
            await client.answer([rng.randrange(VOCAB) for _ in range(rng.randrange(1, 200))], rng.choice((1, 2)))

    await asyncio.gather(*(one() for _ in range(count)))
