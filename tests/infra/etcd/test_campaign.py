"""Candidates that campaign for one leadership, for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from etcd_support import WAIT_S, delete
from wavepp.infra.errors import StartupError
from wavepp.infra.etcd.campaign import Post, await_etcd, campaign_forever
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.election import Election
from wavepp.infra.etcd.errors import EtcdUnavailableError
from wavepp.infra.etcd.server import EtcdServer
from wavepp.infra.etcd.session import Session
from wavepp.infra.etcd.types import Fence, PutOp, created_at
from wavepp.infra.leader import Leader, new_instance
from wavepp.infra.rpc import RpcServer

TTL_S = 30
SHORT_TTL_S = 5


class Candidate:
    def __init__(self, etcd: EtcdClient, key: str, name: str, ttl_s: int = TTL_S) -> None:
        self.etcd, self.key, self.name = etcd, key, name
        self.post = Post(key, f"{key}-candidates/", Leader(address="127.0.0.1:1", instance=name))
        self.superseded = asyncio.Event()
        self.seen_ready, self.seen_unready = asyncio.Event(), asyncio.Event()
        self.sessions: list[Session] = []
        self.ready = asyncio.Event()
        self.ready.set()
        self.fails = 0
        self.leads = False
        self.story: asyncio.Queue[str] = asyncio.Queue()
        self.task = asyncio.create_task(campaign_forever(etcd, self.post, ttl_s, self))

    async def until_ready(self, session: Session) -> None:
        assert session.alive
        await self.ready.wait()

    async def begin(self, fence: Fence, session: Session) -> None:
        self.superseded.clear()
        self.sessions.append(session)
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

    def standing_by(self, leader_ready: bool) -> None:
        (self.seen_ready if leader_ready else self.seen_unready).set()

    def cannot_lead(self, reason: str) -> None:
        pass

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


async def test_a_leader_whose_key_another_one_takes_steps_down_and_campaigns_again(
    etcd: EtcdClient, etcd_prefix: str
) -> None:
    deposed = Candidate(etcd, f"{etcd_prefix}leader", "deposed")
    assert await deposed.next() == "leads"
    async with Session(etcd, TTL_S) as usurper:
        take = PutOp(deposed.key, Leader(address="127.0.0.1:1", instance="usurper").encode(), usurper.lease)
        won = False
        while not won:  # the two race for it
            await delete(etcd, deposed.key)
            won = (await etcd.txn([created_at(deposed.key, 0)], [take])).succeeded
        while (word := await deposed.next()) == "leads":
            pass  # a race that the usurper lost
        assert word == "stepped down"
    assert await deposed.next() == "leads"
    await deposed.stop()


async def test_a_leader_whose_key_is_gone_goes_on_when_it_wins_it_again(etcd: EtcdClient, etcd_prefix: str) -> None:
    only = Candidate(etcd, f"{etcd_prefix}leader", "only")
    assert await only.next() == "leads"
    await delete(etcd, only.key)
    assert await only.next() == "leads", "without having stepped down"
    await only.stop()


async def test_a_leader_whose_lease_is_gone_goes_on_under_a_new_one(etcd: EtcdClient, etcd_prefix: str) -> None:
    only = Candidate(etcd, f"{etcd_prefix}leader", "only", ttl_s=SHORT_TTL_S)
    assert await only.next() == "leads"
    await etcd.lease_revoke(only.sessions[0].lease)
    assert await only.next() == "leads", "without having stepped down"
    assert only.sessions[0] is not only.sessions[1]
    await only.stop()


async def test_a_leader_that_meets_a_higher_token_steps_down_and_leaves_the_key(
    pair: tuple[Candidate, Candidate],
) -> None:
    first, second = pair
    first.superseded.set()
    assert await first.next() == "stepped down"
    assert await second.next() == "leads"


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
            await await_etcd(nobody, 0.0, asyncio.Event())


async def test_a_process_that_starts_before_etcd_waits_for_it(own_etcd: EtcdServer) -> None:
    async with EtcdClient([own_etcd.endpoint], timeout_s=0.3) as client:
        await asyncio.to_thread(own_etcd.stop)
        waiting = asyncio.create_task(await_etcd(client, 60.0, asyncio.Event()))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.5)
        await asyncio.to_thread(own_etcd.start)
        assert await asyncio.wait_for(waiting, WAIT_S)


async def test_a_process_that_is_to_stop_while_it_waits_for_etcd_stops() -> None:
    stop = asyncio.Event()
    async with EtcdClient(["127.0.0.1:1"], timeout_s=0.3) as nobody:
        waiting = asyncio.create_task(await_etcd(nobody, 60.0, stop))
        stop.set()
        assert not await asyncio.wait_for(waiting, WAIT_S)


async def serving(instance: str, port: int = 0) -> tuple[RpcServer, int]:
    server = RpcServer(instance=instance)
    port = await server.start("127.0.0.1", port)
    await server.set_serving(True)
    return server, port


async def test_a_standby_leads_at_once_when_the_leaders_host_refuses_connections(
    etcd: EtcdClient, etcd_prefix: str
) -> None:
    key, instance = f"{etcd_prefix}leader", new_instance()
    server, port = await serving(instance)
    async with Session(etcd, TTL_S) as dying:
        record = Leader(address=f"127.0.0.1:{port}", instance=instance)
        await Election(dying, key, record.encode()).campaign()
        standby = Candidate(etcd, key, "standby")
        await asyncio.wait_for(standby.seen_ready.wait(), WAIT_S)
        await server.stop(0)
        assert await standby.next() == "leads", "long before the lease of the dead one ends"
    await standby.stop()


async def test_a_process_that_has_the_address_of_the_leader_knows_that_it_is_gone(
    etcd: EtcdClient, etcd_prefix: str
) -> None:
    key, reborn = f"{etcd_prefix}leader", "reborn"
    server, port = await serving(reborn)
    async with server, Session(etcd, TTL_S) as dead:
        await Election(dead, key, Leader(address=f"127.0.0.1:{port}", instance=new_instance()).encode()).campaign()
        standby = Candidate(etcd, key, reborn)
        assert await standby.next() == "leads"
        await standby.stop()


async def test_a_leader_that_was_never_reached_keeps_its_lease(etcd: EtcdClient, etcd_prefix: str) -> None:
    key = f"{etcd_prefix}leader"
    async with Session(etcd, TTL_S) as leader:
        token = await Election(leader, key, Leader(address="127.0.0.1:1", instance="far").encode()).campaign()
        standby = Candidate(etcd, key, "standby")
        await asyncio.wait_for(standby.seen_unready.wait(), WAIT_S)
        held = await etcd.get(key)
        assert held is not None
        assert held.create_revision == token
        await standby.stop()
