"""Sessions and elections against a real etcd: who leads, who may still write, and when a process must stop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from etcd_support import WAIT_S, LossyProxy, eventually
from wavepp.core.errors import InvalidInputError
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.election import Election
from wavepp.infra.etcd.errors import EtcdAmbiguousError, EtcdReadOnlyError, FencedError, SessionLostError
from wavepp.infra.etcd.server import EtcdServer
from wavepp.infra.etcd.session import Session
from wavepp.infra.etcd.types import KeyValue
from wavepp.infra.etcd.watch import events_after

TTL_S = 2
"""The shortest that etcd grants; processes use at least 5."""


def short_session(client: EtcdClient) -> Session:
    return Session(client, TTL_S, ttl_min_s=TTL_S)


@pytest.mark.parametrize("ttl_s", [-1, 0, 1, 4, 3601, 10**9])
async def test_ttl_outside_the_bounds_is_refused(etcd: EtcdClient, ttl_s: int) -> None:
    with pytest.raises(InvalidInputError, match=r"\[5, 3600\]"):
        Session(etcd, ttl_s)


async def test_closing_a_session_takes_its_keys_with_it(etcd: EtcdClient, etcd_prefix: str) -> None:
    async with Session(etcd, 60) as session:
        assert session.alive
        assert not session.degraded
        await etcd.put(etcd_prefix + "a", b"", session.lease)
    assert session.lost.is_set()
    assert not session.alive
    assert await etcd.get(etcd_prefix + "a") is None
    with pytest.raises(SessionLostError):
        _ = session.lease


async def test_session_outlives_its_ttl_while_it_renews(etcd: EtcdClient, etcd_prefix: str) -> None:
    async with short_session(etcd) as session:
        began = time.monotonic()
        await etcd.put(etcd_prefix + "a", b"", session.lease)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.lost.wait(), TTL_S * 1.4)
        assert time.monotonic() - began > TTL_S * 1.3
        assert session.alive
        assert await etcd.get(etcd_prefix + "a") is not None


async def test_session_is_lost_when_etcd_says_that_the_lease_is_gone(etcd: EtcdClient) -> None:
    async with short_session(etcd) as session:
        await etcd.lease_revoke(session.lease)
        await asyncio.wait_for(session.lost.wait(), TTL_S)
        assert not session.alive


async def test_an_outage_longer_than_the_lease_loses_nothing_that_etcd_still_has(own_etcd: EtcdServer) -> None:
    async with EtcdClient([own_etcd.endpoint], timeout_s=0.3) as client, short_session(client) as session:
        lease = session.lease
        await client.put("a", b"", lease)
        await asyncio.to_thread(own_etcd.stop)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.lost.wait(), TTL_S * 1.5)
        assert session.degraded
        assert session.lease == lease
        await asyncio.to_thread(own_etcd.start)
        await asyncio.wait_for(_until(lambda: not session.degraded), WAIT_S)
        assert await client.get("a") is not None


async def test_renewals_that_hang_twice_leave_time_for_a_third(etcd: EtcdClient, etcd_proxy: LossyProxy) -> None:
    async with EtcdClient([etcd_proxy.endpoint], timeout_s=3.0) as client:
        renewals: list[float] = []
        renew = client.lease_renew

        async def counted(lease: int, *, timeout_s: float | None = None) -> int:
            renewals.append(time.monotonic())
            # The third gets through.
            etcd_proxy.swallow_answers = len(renewals) < 3
            if len(renewals) == 3:
                etcd_proxy.cut()
            return await renew(lease, timeout_s=timeout_s)

        client.lease_renew = counted  # type: ignore[method-assign]
        async with Session(client, 5) as session:
            began = time.monotonic()
            await asyncio.wait_for(_until(lambda: len(renewals) >= 3), WAIT_S)
            assert renewals[2] - began < 5.0, "within the lease"
            await asyncio.wait_for(_until(lambda: not session.degraded), WAIT_S)
            assert session.alive


async def test_when_a_leaders_lease_expires_another_leads_and_the_old_ones_writes_are_refused(
    etcd: EtcdClient, etcd_proxy: LossyProxy, etcd_prefix: str
) -> None:
    key = etcd_prefix + "leader"
    async with EtcdClient([etcd_proxy.endpoint], timeout_s=0.5) as old_client:
        old_session = short_session(old_client)
        await old_session.start()
        old = Election(old_session, key, b"me")
        old_token = await old.campaign()
        async with Session(etcd, 60) as new_session:
            new = Election(new_session, key, b"me")
            campaign = asyncio.ensure_future(new.campaign())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(campaign), 0.2)
            # The worse half of a partition: the old leader's renewals arrive, but it hears nothing any more.
            etcd_proxy.swallow_answers = True
            new_token = await asyncio.wait_for(campaign, WAIT_S)
            assert not old_session.lost.is_set(), "it has not heard, and is kept from harm by its token only"
            assert new_token > old_token
            assert await new_session.client.raise_counter(etcd_prefix + "data", [new.fence]) == 1
            with pytest.raises(FencedError):
                await etcd.raise_counter(etcd_prefix + "data", [old.fence])
            item = await etcd.get(etcd_prefix + "data")
            assert item is not None
            assert item.value == b"1"
        await old_session.close()


async def test_resigning_lets_the_next_candidate_lead_at_once(etcd: EtcdClient, etcd_prefix: str) -> None:
    key = etcd_prefix + "leader"
    async with Session(etcd, 60) as first, Session(etcd, 60) as second:
        leader = Election(first, key, b"me")
        with pytest.raises(InvalidInputError, match="not been elected"):
            _ = leader.fence
        await leader.campaign()
        other = Election(second, key, b"2")
        campaign = asyncio.ensure_future(other.campaign())
        deposed = asyncio.ensure_future(leader.until_not_held())
        await leader.resign()
        assert await asyncio.wait_for(campaign, 1.0) == other.fence.create_revision
        await asyncio.wait_for(deposed, WAIT_S)
        await leader.resign()  # does nothing, above all not to the new leader
        item = await etcd.get(key)
        assert item is not None
        assert item.value == b"2"


async def test_a_leader_that_a_rival_knows_to_be_gone_is_deposed_only_once(etcd: EtcdClient, etcd_prefix: str) -> None:
    key = etcd_prefix + "leader"
    gone = asyncio.Event()

    async def rival(_leader: KeyValue) -> None:
        await gone.wait()

    async with Session(etcd, 60) as first, Session(etcd, 60) as second, Session(etcd, 60) as third:
        leader = Election(first, key, b"1")
        token = await leader.campaign()
        candidates = [Election(session, key, b"2", rival=rival) for session in (second, third)]
        campaigns = [asyncio.ensure_future(candidate.campaign()) for candidate in candidates]
        over = asyncio.ensure_future(leader.until_not_held())
        gone.set()
        await asyncio.wait_for(over, WAIT_S)
        done, waiting = await asyncio.wait(campaigns, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        assert next(iter(done)).result() > token
        with pytest.raises(FencedError):
            await etcd.raise_counter(etcd_prefix + "data", [leader.fence])
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def fill(client: EtcdClient) -> None:
    for i in range(2000):
        await client.put(f"junk/{i}", b"x" * 200_000)


async def test_an_etcd_without_space_deposes_nobody(tmp_path: Path) -> None:
    full = EtcdServer(tmp_path / "data", tmp_path / "log", fsync=False, flags=("--quota-backend-bytes=1000000",))
    await asyncio.to_thread(full.start)
    try:
        async with EtcdClient([full.endpoint]) as client, Session(client, 60) as session:
            leader = Election(session, "leader", b"me")
            await leader.campaign()
            with pytest.raises(EtcdReadOnlyError):
                await fill(client)
            over = asyncio.ensure_future(leader.until_not_held())
            # The watch is read again meanwhile, and the lease renewed.
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(over), 1.0)
            await client.lease_revoke(session.lease)
            with contextlib.suppress(SessionLostError):
                await asyncio.wait_for(over, WAIT_S)
    finally:
        await asyncio.to_thread(full.stop)


async def test_campaign_whose_winning_answer_was_lost_knows_its_own_key(
    etcd: EtcdClient, etcd_proxy: LossyProxy, etcd_prefix: str
) -> None:
    key = etcd_prefix + "leader"
    async with EtcdClient([etcd_proxy.endpoint]) as client, Session(client, 60) as session:
        start = (await etcd.get_prefix(etcd_prefix)).revision
        etcd_proxy.swallow_answers = True
        election = Election(session, key, b"me")
        campaign = asyncio.ensure_future(election.campaign())
        async with asyncio.timeout(WAIT_S), aclosing(events_after(etcd, key, None, start)) as events:
            await anext(events)  # the try was applied
        assert not campaign.done()
        etcd_proxy.cut()
        token = await asyncio.wait_for(campaign, WAIT_S)
        item = await etcd.get(key)
        assert item is not None
        assert (item.create_revision, item.version) == (token, 1)


async def test_cancelled_campaign_leaves_no_key_behind(
    etcd: EtcdClient, etcd_proxy: LossyProxy, etcd_prefix: str
) -> None:
    key = etcd_prefix + "leader"
    async with EtcdClient([etcd_proxy.endpoint]) as client, Session(client, 60) as session:
        start = (await etcd.get_prefix(etcd_prefix)).revision
        etcd_proxy.swallow_answers = True
        campaign = asyncio.ensure_future(Election(session, key, b"me").campaign())
        async with asyncio.timeout(WAIT_S), aclosing(events_after(etcd, key, None, start)) as events:
            await anext(events)  # won, but it does not know
            etcd_proxy.swallow_answers = False
            campaign.cancel()
            await anext(events)  # and given up
        with pytest.raises(asyncio.CancelledError):
            await campaign
        assert await etcd.get(key) is None


async def test_cancelled_waiting_candidate_does_not_disturb_the_leader(etcd: EtcdClient, etcd_prefix: str) -> None:
    key = etcd_prefix + "leader"
    async with Session(etcd, 60) as first, Session(etcd, 60) as second:
        token = await Election(first, key, b"me").campaign()
        waiting = asyncio.ensure_future(Election(second, key, b"me").campaign())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiting, 0.2)
        item = await etcd.get(key)
        assert item is not None
        assert item.create_revision == token


async def test_candidate_that_missed_the_end_of_the_leader_reads_again(
    etcd: EtcdClient, etcd_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = etcd_prefix + "leader"

    async def deaf(*_args: object, **_kwargs: object) -> object:
        await asyncio.Event().wait()
        yield

    async with Session(etcd, 60) as first, Session(etcd, 60) as second:
        leader = Election(first, key, b"me")
        await leader.campaign()
        monkeypatch.setattr(etcd, "watch_stream", deaf)
        campaign = asyncio.ensure_future(Election(second, key, b"me", reread_s=0.1).campaign())
        await leader.resign()
        await asyncio.wait_for(campaign, WAIT_S)


async def test_campaign_goes_on_through_an_outage(own_etcd: EtcdServer) -> None:
    async with EtcdClient([own_etcd.endpoint], timeout_s=0.5) as client, Session(client, 60) as session:
        await asyncio.to_thread(own_etcd.stop)
        campaign = asyncio.ensure_future(Election(session, "leader", b"me").campaign())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(campaign), 0.3)
        await asyncio.to_thread(own_etcd.start)
        token = await asyncio.wait_for(campaign, WAIT_S)
        item = await eventually(lambda: client.get("leader"))
        assert item is not None
        assert item.create_revision == token


async def test_losing_the_session_ends_a_waiting_campaign(etcd: EtcdClient, etcd_prefix: str) -> None:
    key = etcd_prefix + "leader"
    async with Session(etcd, 60) as first, short_session(etcd) as second:
        await Election(first, key, b"me").campaign()
        campaign = asyncio.ensure_future(Election(second, key, b"me").campaign())
        await etcd.lease_revoke(second.lease)
        with pytest.raises(SessionLostError):
            await asyncio.wait_for(campaign, WAIT_S)


async def test_ambiguous_revocation_does_not_keep_a_session_from_closing(
    etcd: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(etcd, 60)
    await session.start()

    async def lost(*_args: object, **_kwargs: object) -> None:
        raise EtcdAmbiguousError("answer lost")

    monkeypatch.setattr(etcd, "lease_revoke", lost)
    await session.close()
    assert session.lost.is_set()


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - each caller has a time limit
        await asyncio.sleep(0.01)
