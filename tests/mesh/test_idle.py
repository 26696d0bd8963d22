"""What the processes cost when there is nothing to do, and that work leaves no memory behind."""

from __future__ import annotations

import asyncio
import random

from perf.idle import measure, processes_of, shipped_interval_s

from mesh_support import VOCAB, MeshClient
from wavepp.cli.local.cluster import LocalCluster

WINDOW_S = 5.0
OWN_PERCENT_MAX = 2.0
"""Of a core."""
TOGETHER_PERCENT_MAX = 4.0
"""Twice the goal: in so short a window one probe counts for much, and on a busy machine it costs more."""
WARM_UP = 300
REQUESTS = 1000
CONCURRENT = 16
GROWTH_MAX_BYTES = 5_000_000


async def test_idle_processes_and_their_probes_use_next_to_nothing(mesh: LocalCluster, client: MeshClient) -> None:
    await client.answer(range(500), 3)
    await client.quiet()
    found = await asyncio.to_thread(processes_of, mesh)
    # A measurement over a window of time, not a wait for something.
    window_s = await asyncio.to_thread(measure, found, WINDOW_S, shipped_interval_s())
    rows = {process.name: process.row(window_s) for process in found}
    print(rows)  # noqa: T201 - figures for the reader of a failure
    assert sorted(rows) == ["directory", "etcd", "router", "stage-0", "stage-1"]
    assert all(p.own_percent(window_s) < OWN_PERCENT_MAX for p in found), rows
    probed = [p for p in found if p.name != "etcd"]
    assert all(p.probes_s and not p.unready for p in probed), rows
    assert all(p.together_percent(window_s) < TOGETHER_PERCENT_MAX for p in probed), rows


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
