"""Campaigning for a leadership for ever: what the router and the directory do alike."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import NoReturn, Protocol

from wavepp.infra.backoff import Backoff
from wavepp.infra.errors import StartupError
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.election import Election, depose_predecessor
from wavepp.infra.etcd.errors import EtcdError
from wavepp.infra.etcd.session import Session
from wavepp.infra.etcd.types import Fence

_log = logging.getLogger(__name__)


class Candidate(Protocol):
    """What leads when it is elected."""

    async def until_ready(self, session: Session) -> None:
        """Return when it could lead; cancelled when `session` is lost first."""

    async def begin(self, fence: Fence) -> None:
        """It leads from now on, as `fence` proves. May raise EtcdError, which ends the leadership."""

    def step_down(self) -> None:
        """It does not lead (any more). May be called again."""


@dataclass(frozen=True, slots=True)
class Post:
    """What is campaigned for: the key, and the address that the leader writes there.

    `own_address`: it is a socket's that this process listens on, which nobody else can: whoever leads under it is gone.
    """

    key: str
    address: str
    own_address: bool


async def require_etcd(client: EtcdClient) -> None:
    """Raises StartupError unless etcd answers: later it may go and come as it likes, but not at the start."""
    try:
        await client.get("/wavepp/")
    except EtcdError as error:
        raise StartupError(f"etcd: {error}") from error


async def campaign_forever(client: EtcdClient, post: Post, lease_ttl_s: int, candidate: Candidate) -> NoReturn:
    """Campaign and lead, again and again, each time on a fresh lease; a task of the process."""
    backoff = Backoff()
    while True:
        try:
            async with Session(client, lease_ttl_s) as session:
                await session.until_lost(candidate.until_ready(session))
                await _lead(session, post, candidate, backoff)
        except EtcdError as error:
            _log.warning("not leading: %s", error)
        finally:
            candidate.step_down()
        await asyncio.sleep(backoff.next_s())


async def _lead(session: Session, post: Post, candidate: Candidate, backoff: Backoff) -> None:
    value = post.address.encode()
    if post.own_address:
        await depose_predecessor(session, post.key, value)
    election = Election(session, post.key)
    token = await election.campaign(value)
    backoff.reset()
    try:
        await candidate.begin(election.fence)
        _log.info("leading, %s, token %d", post.key, token)
        await election.wait_deposed()
        _log.warning("not leading any more")
    finally:
        # First: who leads next must find nothing of this leadership at work.
        candidate.step_down()
        await election.resign()
