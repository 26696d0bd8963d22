"""A process' own etcd lease: lost when etcd says so, and not before.

A silent etcd proves nothing: it may be down, with every lease as it was when it comes back. Whoever leads meanwhile on
the other side of a partition has a higher token, and that, not a clock, keeps this process from doing harm.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Coroutine
from typing import Any, Final, Self, TypeVar

from wavepp.core.errors import InvalidInputError
from wavepp.infra.backoff import Backoff
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.errors import EtcdError, EtcdLeaseNotFoundError, SessionLostError

T = TypeVar("T")
_log = logging.getLogger(__name__)

LEASE_TTL_MIN_S: Final = 5
LEASE_TTL_MAX_S: Final = 3600
_RENEW_SHARE: Final = 1 / 3
"""Renewed each third of the time to live ..."""
_ASKED_KEY: Final = "/wavepp/"
_TRY_SHARE: Final = 1 / 6
"""... and a try may take half of that, so that two may hang, not only fail, before it matters."""


class Session:
    """One etcd lease, kept alive. `lost` is set when etcd says that the lease is gone; while etcd cannot be asked,
    renewals are tried again for ever. So its keys may be gone before `lost` is set: writes must be fenced.

    A lost session stays lost; start a new one. Use as `async with Session(client, ttl_s) as session`.
    """

    def __init__(self, client: EtcdClient, ttl_s: int, *, ttl_min_s: int = LEASE_TTL_MIN_S) -> None:
        """`ttl_min_s` is for tests only. Raises InvalidInputError for a `ttl_s` outside [ttl_min_s, 3600]."""
        if not ttl_min_s <= ttl_s <= LEASE_TTL_MAX_S:
            raise InvalidInputError(f"lease ttl {ttl_s} s is outside [{ttl_min_s}, {LEASE_TTL_MAX_S}] s")
        self._client = client
        self._ttl_s = ttl_s
        self._lease = 0
        self._failing = False
        self._renewing: asyncio.Task[None] | None = None
        self.lost = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    @property
    def client(self) -> EtcdClient:
        """The client that the lease was granted through."""
        return self._client

    @property
    def lease(self) -> int:
        """The id to hang keys on. Raises SessionLostError unless the session is alive."""
        if not self.alive:
            raise SessionLostError("this process holds no etcd lease (never started, lost, or closed)")
        return self._lease

    @property
    def alive(self) -> bool:
        """Whether etcd keeps the lease, for all that is known."""
        return self._lease != 0 and not self.lost.is_set()

    @property
    def degraded(self) -> bool:
        """True when the last renewal failed: etcd seems unavailable."""
        return self._failing or not self.alive

    async def start(self) -> None:
        """Get the lease. Raises EtcdError when etcd does not give one within the client's time limit."""
        if self._lease:
            raise InvalidInputError("a session starts once; make a new one")
        self._lease, _ = await self._client.lease_grant(self._ttl_s)
        self._renewing = asyncio.create_task(self._renew_forever(), name="etcd-session-renew")

    async def close(self) -> None:
        """Stop renewing and revoke the lease, which deletes its keys at once. Sets `lost`. Never raises EtcdError."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
            self._renewing = None
        self.lost.set()
        lease, self._lease = self._lease, 0
        if lease:
            try:
                await self._client.lease_revoke(lease)
            except EtcdLeaseNotFoundError:
                pass  # expired already: the same end
            except EtcdError as error:
                _log.warning("etcd lease %x not revoked, it will expire: %s", lease, error)

    async def until_lost(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work`; if the session is lost first, cancel it and raise SessionLostError."""
        task = asyncio.ensure_future(work)
        lost = asyncio.ensure_future(self.lost.wait())
        try:
            await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and self.alive:
                return task.result()
            raise SessionLostError("the etcd lease was lost")
        finally:
            for each in (task, lost):
                each.cancel()
            await asyncio.gather(task, lost, return_exceptions=True)

    async def _renew_forever(self) -> None:
        period_s = self._ttl_s * _RENEW_SHARE
        limit_s = min(self._client.timeout_s, self._ttl_s * _TRY_SHARE)
        backoff = Backoff(max_s=max(0.1, period_s / 4))
        pause_s, acknowledged = period_s, time.monotonic()
        while True:
            await asyncio.sleep(pause_s)
            try:
                if time.monotonic() - acknowledged > self._ttl_s:
                    # Whoever hears nothing must not keep a lease by renewals that arrive: ask first.
                    await self._client.get(_ASKED_KEY, timeout_s=limit_s)
                left_s = await self._client.lease_renew(self._lease, timeout_s=limit_s)
            except EtcdError as error:
                # Soon again, and not in step with others.
                if not self._failing:
                    _log.warning("etcd lease renewal failed, trying again: %s", error)
                self._failing = True
                pause_s = backoff.next_s()
                continue
            if left_s == 0:
                _log.error("etcd lease %x lost: etcd says that it has expired", self._lease)
                self.lost.set()
                return
            if self._failing:
                _log.info("etcd lease renewal works again")
            self._failing = False
            backoff.reset()
            acknowledged = time.monotonic()
            pause_s = period_s * random.uniform(0.8, 1.0)
