"""Campaigning for a leadership for ever: what the router and the directory do alike."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol

from wavepp.infra.backoff import Backoff
from wavepp.infra.errors import StartupError
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.election import Election
from wavepp.infra.etcd.errors import EtcdError, EtcdRequestError, SessionLostError
from wavepp.infra.etcd.session import Session
from wavepp.infra.etcd.types import Fence, KeyValue
from wavepp.infra.leader import Leader, LeaderError, until_gone

_log = logging.getLogger(__name__)

SUPERSEDED_PAUSE_S: Final = 1.0
WAIT_WARN_PERIOD_S: Final = 10.0
WAIT_PAUSE_MAX_S: Final = 0.5
"""Between two questions whether etcd is there, which mostly do not leave the process."""


class Candidate(Protocol):
    """What leads when it is elected.

    A lease that is lost ends no leadership by itself: the candidate goes on under its old fence, which etcd does not
    honour any more, until it is elected again (`begin` with a new one) or hears that it is over (`step_down`).
    """

    @property
    def superseded(self) -> asyncio.Event:
        """Set when somebody has shown this leader a higher token than its own; cleared by `begin`."""

    async def until_ready(self, session: Session) -> None:
        """Return when it could lead; cancelled when `session` is lost first."""

    async def begin(self, fence: Fence, session: Session) -> None:
        """It leads from now on, or goes on leading, as `fence` proves. Raises EtcdError: then it does not."""

    def step_down(self) -> None:
        """It does not lead (any more). May be called again."""

    def standing_by(self, leader_ready: bool) -> None:
        """Another one leads, and says that it is ready or not. It has been told to step down before."""

    def cannot_lead(self, reason: str) -> None:
        """Why it cannot even campaign; empty when it can."""


@dataclass(frozen=True, slots=True)
class Post:
    """What is campaigned for: the key, where all candidates say that they are there, and who this one is."""

    key: str
    candidates: str
    leader: Leader


async def await_etcd(client: EtcdClient, wait_s: float, stop: asyncio.Event) -> bool:
    """Wait until etcd answers, so that processes may start in any order; False when `stop` is set first.

    Raises StartupError when it does not within `wait_s`, or refuses the question itself.
    """
    ends, backoff, warn_at = time.monotonic() + wait_s, Backoff(max_s=WAIT_PAUSE_MAX_S), 0.0
    while not stop.is_set():
        try:
            await client.get("/wavepp/")
            return True
        except EtcdRequestError as error:
            raise StartupError(f"etcd: {error}") from error
        except EtcdError as error:
            now = time.monotonic()
            if now >= ends:
                raise StartupError(f"etcd: {error} (tried for {wait_s:g} s)") from error
            if now >= warn_at:
                warn_at = now + WAIT_WARN_PERIOD_S
                _log.warning("waiting for etcd, %.0f s more at most: %s", ends - now, error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(backoff.next_s()):
                await stop.wait()
    return False


async def other_candidates(client: EtcdClient, post: Post) -> tuple[Leader, ...]:
    """Who else could lead now. May raise EtcdError."""
    snapshot = await client.get_prefix(post.candidates)
    found = (_decoded(item) for item in snapshot.items)
    return tuple(leader for leader in found if leader is not None and leader != post.leader)


async def campaign_forever(client: EtcdClient, post: Post, lease_ttl_s: int, candidate: Candidate) -> NoReturn:
    """Campaign and lead, again and again, on a fresh lease when one is lost; a task of the process."""
    backoff = Backoff()
    try:
        while True:
            try:
                async with Session(client, lease_ttl_s) as session:
                    await session.until_lost(candidate.until_ready(session))
                    await client.put(f"{post.candidates}{post.leader.instance}", post.leader.encode(), session.lease)
                    candidate.cannot_lead("")
                    await _lead(session, post, candidate, backoff)
            except EtcdError as error:
                _log.warning("not leading: %s", error)
                candidate.cannot_lead(str(error))
            await asyncio.sleep(backoff.next_s())
    finally:
        candidate.step_down()


async def _lead(session: Session, post: Post, candidate: Candidate, backoff: Backoff) -> NoReturn:
    async def rival(held: KeyValue) -> None:
        leader = _decoded(held)
        if leader == post.leader:
            return  # this very process, under a lease that it lost
        candidate.step_down()
        if leader is None:
            await asyncio.Event().wait()  # its lease decides
        else:
            await until_gone(leader, candidate.standing_by)

    election = Election(session, post.key, post.leader.encode(), rival=rival)
    try:
        while True:
            token = await election.campaign()
            backoff.reset()
            await candidate.begin(election.fence, session)
            _log.info("leading, %s, token %d", post.key, token)
            await _until_over(election, candidate)
            _log.warning("%s: not leading under token %d any more", post.key, token)
    except SessionLostError:
        raise  # whether anybody else leads is not known yet
    except BaseException:
        # First: who leads next must find nothing of this leadership at work.
        candidate.step_down()
        await election.resign()
        raise


async def _until_over(election: Election, candidate: Candidate) -> None:
    """Return when the key is not ours any more, or when a higher token than ours is at work."""
    held = asyncio.ensure_future(election.until_not_held())
    superseded = asyncio.ensure_future(candidate.superseded.wait())
    try:
        await asyncio.wait({held, superseded}, return_when=asyncio.FIRST_COMPLETED)
        if superseded.done():
            candidate.step_down()
            await election.resign()
            # Whoever has that token leads next, if it is alive.
            await asyncio.sleep(SUPERSEDED_PAUSE_S)
        else:
            held.result()
    finally:
        for each in (held, superseded):
            each.cancel()
        await asyncio.gather(held, superseded, return_exceptions=True)


def _decoded(item: KeyValue) -> Leader | None:
    try:
        return Leader.decode(item.value)
    except LeaderError as error:
        _log.warning("%s: %s", item.key, error)
        return None
