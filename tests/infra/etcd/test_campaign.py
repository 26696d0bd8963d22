"""Candidates that campaign for one leadership, for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from etcd_support import WAIT_S, delete
from wavepp.infra.errors import StartupError
from wavepp.infra.etcd.campaign import Post, campaign_forever, require_etcd
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.election import Election
from wavepp.infra.etcd.errors import EtcdUnavailableError
from wavepp.infra.etcd.session import Session
from wavepp.infra.etcd.types import Fence

TTL_S = 30


class Candidate:
    def __init__(self, etcd: EtcdClient, key: str, name: str) -> None:
        self.etcd, self.key, self.name = etcd, key, name
        self.ready = asyncio.Event()
        self.ready.set()
        self.fails = 0
        self.leads = False
        self.story: asyncio.Queue[str] = asyncio.Queue()
        self.task = asyncio.create_task(campaign_forever(etcd, Post(key, name, own_address=False), TTL_S, self))

    async def until_ready(self, session: Session) -> None:
        assert session.alive
        await self.ready.wait()

    async def begin(self, fence: Fence) -> None:
        if self.fails:
            self.fails -= 1
            raise EtcdUnavailableError("the ledger cannot be read")
        assert fence.key == self.key
        self.leads = True
        self.story.put_nowait("leads")

    def step_down(self) -> None:
        if self.leads:
            self.leads = False
            self.story.put_nowait("stepped down")

    async def next(self) -> str:
        async with asyncio.timeout(WAIT_S):
            return await self.story.get()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def pair(etcd: EtcdClient, etcd_prefix: str) -> AsyncIterator[tuple[Candidate, Candidate]]:
    first = Candidate(etcd, f"{etcd_prefix}leader", "first")
    assert await first.next() == "leads"
    second = Candidate(etcd, f"{etcd_prefix}leader", "second")
    yield first, second
    await first.stop()
    await second.stop()


async def test_a_leader_that_stops_has_stepped_down_before_anybody_else_can_lead(
    pair: tuple[Candidate, Candidate], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    resign = Election.resign

    async def seen(election: Election) -> None:
        first.story.put_nowait("resigns")
        await resign(election)

    monkeypatch.setattr(Election, "resign", seen)
    first.task.cancel()
    assert [await first.next(), await first.next()] == ["stepped down", "resigns"]
    assert await second.next() == "leads"


async def test_a_deposed_leader_steps_down_and_campaigns_again(
    pair: tuple[Candidate, Candidate], etcd: EtcdClient
) -> None:
    first, second = pair
    await delete(etcd, first.key)
    assert await first.next() == "stepped down"
    async with asyncio.timeout(WAIT_S):
        leads = asyncio.create_task(first.next()), asyncio.create_task(second.next())
        done, waiting = await asyncio.wait(leads, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == ["leads"]
        for task in waiting:
            task.cancel()
    leader, standby = (first, second) if first.leads else (second, first)
    await leader.stop()
    assert await standby.next() == "leads"


async def test_a_candidate_that_is_not_ready_leaves_the_leadership_to_others(
    etcd: EtcdClient, etcd_prefix: str
) -> None:
    unready = Candidate(etcd, f"{etcd_prefix}leader", "unready")
    unready.ready.clear()
    ready = Candidate(etcd, f"{etcd_prefix}leader", "ready")
    assert await ready.next() == "leads"
    unready.ready.set()
    await ready.stop()
    assert await unready.next() == "leads"
    await unready.stop()


async def test_a_leadership_that_cannot_begin_is_given_up_and_tried_again(etcd: EtcdClient, etcd_prefix: str) -> None:
    candidate = Candidate(etcd, f"{etcd_prefix}leader", "candidate")
    candidate.fails = 1
    assert await candidate.next() == "leads"
    assert candidate.fails == 0
    await candidate.stop()
    assert await etcd.get(candidate.key) is None


async def test_a_start_without_etcd_is_one_error_that_names_it() -> None:
    async with EtcdClient(["127.0.0.1:1"], timeout_s=0.3) as nobody:
        with pytest.raises(StartupError, match=r"^etcd: .*127\.0\.0\.1:1"):
            await require_etcd(nobody)
