"""The links of one stage, over a transport that does what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wavepp.core.ids import Incarnation, PipelineEpoch, StageIndex
from wavepp.infra.backoff import Backoff
from wavepp.infra.tasks import TaskOwner
from wavepp.stage import neighbours as neighbours_module
from wavepp.stage.links.base import LinkCounters, Transport
from wavepp.stage.links.errors import LinkConnectError, LinkLostError, LossReason
from wavepp.stage.neighbours import Neighbours

LIMIT_S = 5.0


async def turns() -> None:
    """Let whatever can run on the loop run: nothing here waits for more than other tasks."""
    for _ in range(20):
        await asyncio.sleep(0)


class Scripted:
    """A transport and its listener. `connect` gives a link when `reachable` is set; nobody ever connects."""

    def __init__(self) -> None:
        self.reachable = asyncio.Event()
        self.connecting = asyncio.Event()
        self.refused = 0
        self.failing = False
        self.links: list[SimpleNamespace] = []
        self._closed = asyncio.Event()

    async def connect(self, _address: str, _hello: object, _timeout_s: float) -> Any:
        self.connecting.set()
        if self.failing:
            raise LinkConnectError("nobody is there")
        await self.reachable.wait()
        closed = asyncio.get_running_loop().create_future()
        link = SimpleNamespace(closed=closed, counters=LinkCounters(), abort=lambda _reason: None)
        self.links.append(link)
        return link

    def listen(self, _check: object, *, host: str, port: int) -> Scripted:
        return self

    async def start(self) -> str:
        return "tcp://127.0.0.1:1"

    async def accept(self) -> Any:
        await self._closed.wait()
        self.refused += 1
        assert self.refused < 100, "the closed listener is asked for ever"
        raise LinkConnectError("the listener was closed")

    async def close(self) -> None:
        self._closed.set()
        # Links that are torn down take a moment.
        await turns()


class Bench:
    def __init__(self, tasks: TaskOwner) -> None:
        self.transport = Scripted()
        self.ready: asyncio.Queue[PipelineEpoch] = asyncio.Queue()
        self.lost: asyncio.Queue[str] = asyncio.Queue()
        self.neighbours = Neighbours(
            cluster="c",
            pipeline="p",
            stage=StageIndex(1),
            stages=3,
            transport=cast(Transport, self.transport),
            tasks=tasks,
            on_wave=lambda _wave: None,
            on_sent=lambda _epoch: None,
            on_ready=self.ready.put_nowait,
            on_lost=lambda _epoch, reason: self.lost.put_nowait(reason),
        )


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with asyncio.timeout(LIMIT_S), TaskOwner(asyncio.Event()) as tasks:
        yield Bench(tasks)


async def test_a_link_that_is_being_made_when_the_incarnation_ends_is_not_made(bench: Bench) -> None:
    neighbours = bench.neighbours
    neighbours.identify(Incarnation("first"))
    neighbours.set_epoch(PipelineEpoch(1), "tcp://next", "next-1")
    await bench.transport.connecting.wait()
    neighbours.identify(Incarnation("second"))
    bench.transport.reachable.set()
    await turns()
    assert bench.ready.empty()
    assert neighbours.describe() == "in: down, out: down"


async def test_a_link_is_made_when_the_next_stage_answers(bench: Bench) -> None:
    bench.neighbours.identify(Incarnation("first"))
    bench.neighbours.set_epoch(PipelineEpoch(1), "tcp://next", "next-1")
    bench.transport.reachable.set()
    assert await bench.ready.get() == PipelineEpoch(1)
    assert bench.neighbours.describe() == "in: down, out: up"


async def test_a_closed_listener_is_not_asked_for_links(bench: Bench) -> None:
    await bench.neighbours.start("127.0.0.1", 0)
    await asyncio.sleep(0)
    await bench.neighbours.close()
    assert bench.transport.refused == 0


async def test_totals_go_on_when_a_new_link_takes_the_place_of_one_that_broke(bench: Bench) -> None:
    neighbours, transport = bench.neighbours, bench.transport
    transport.reachable.set()
    for epoch in (1, 2, 3):
        neighbours.set_epoch(PipelineEpoch(epoch), "tcp://next", "next-1")
        await bench.ready.get()
        transport.links[-1].counters.frames_sent += 10
        transport.links[-1].counters.credit_waits += 1
        assert neighbours.counters == LinkCounters(frames_sent=10 * epoch, credit_waits=epoch)
        transport.links[-1].closed.set_result(LinkLostError(LossReason.CUT, "pulled"))
        await turns()
        assert neighbours.counters == LinkCounters(frames_sent=10 * epoch, credit_waits=epoch)
    assert len(transport.links) == 3


async def test_links_that_fail_again_and_again_are_told_until_one_is_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours_module, "Backoff", lambda: Backoff(0.0, 0.0))
    neighbours = bench.neighbours
    neighbours.identify(Incarnation("first"))
    bench.transport.failing = True
    neighbours.set_epoch(PipelineEpoch(1), "tcp://next", "next-1")
    await bench.lost.get()
    assert neighbours.trouble == "no link to the next stage after 5 tries: nobody is there"
    assert neighbours.describe() == f"in: down, out: down ({neighbours.trouble})"
    assert neighbours.next_address == "tcp://next"
    assert not neighbours.up
    neighbours.set_epoch(PipelineEpoch(2), "tcp://next", "next-1")
    await bench.lost.get()
    assert "after 10 tries" in neighbours.trouble, "an epoch that is in vain does not begin anew"
    bench.transport.failing = False
    bench.transport.reachable.set()
    neighbours.set_epoch(PipelineEpoch(3), "tcp://next", "next-1")
    assert await bench.ready.get() == 3
    assert not neighbours.trouble
    assert neighbours.describe() == "in: down, out: up"
