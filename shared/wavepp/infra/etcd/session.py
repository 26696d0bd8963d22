"""A process' own etcd lease, with a deadline that does not need etcd to be noticed."""

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
"""Renewed each third of the time to live, so that two renewals may fail before it matters."""
_MARGIN_SHARE: Final = 0.05
_MARGIN_MAX_S: Final = 1.0
"""The local deadline lies before etcd's by this much: for a late timer and for clocks that run at different rates."""


class Session:
    """One etcd lease, kept alive. `lost` is set no later than its time to live after the last renewal that etcd
    acknowledged, counted from when that renewal was *sent*: never later than etcd lets go of the keys.

    A lost session stays lost; start a new one. Use as `async with Session(client, ttl_s) as session`.
    """

    def __init__(self, client: EtcdClient, ttl_s: int, *, ttl_min_s: int = LEASE_TTL_MIN_S) -> None:
        """`ttl_min_s` is for tests only. Raises InvalidInputError for a `ttl_s` outside [ttl_min_s, 3600]."""
        if not ttl_min_s <= ttl_s <= LEASE_TTL_MAX_S:
            raise InvalidInputError(f"lease ttl {ttl_s} s is outside [{ttl_min_s}, {LEASE_TTL_MAX_S}] s")
        self._client = client
        self._ttl_s = ttl_s
        self._lease = 0
        self._deadline = 0.0
        self._failing = False
        self._tasks: list[asyncio.Task[None]] = []
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
        """True while etcd certainly keeps the lease. Exact even when the event loop is late to set `lost`."""
        return self._lease != 0 and not self.lost.is_set() and time.monotonic() < self._deadline

    @property
    def degraded(self) -> bool:
        """True when the last renewal failed: etcd seems unavailable, though the lease still holds."""
        return self._failing or not self.alive

    async def start(self) -> None:
        """Get the lease. Raises EtcdError when etcd does not give one within the client's time limit."""
        if self._lease:
            raise InvalidInputError("a session starts once; make a new one")
        sent = time.monotonic()
        self._lease, granted_s = await self._client.lease_grant(self._ttl_s)
        self._acknowledged(sent, granted_s)
        self._tasks = [
            asyncio.create_task(self._renew_forever(), name="etcd-session-renew"),
            asyncio.create_task(self._watch_deadline(), name="etcd-session-deadline"),
        ]

    async def close(self) -> None:
        """Stop renewing and revoke the lease, which deletes its keys at once. Sets `lost`. Never raises EtcdError."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
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

    def _acknowledged(self, sent: float, granted_s: int) -> None:
        margin_s = min(_MARGIN_MAX_S, granted_s * _MARGIN_SHARE)
        self._deadline = max(self._deadline, sent + granted_s - margin_s)

    async def _renew_forever(self) -> None:
        period_s = self._ttl_s * _RENEW_SHARE
        limit_s = min(self._client.timeout_s, period_s)
        backoff = Backoff(max_s=max(0.1, period_s / 3))
        pause_s = period_s
        while True:
            await asyncio.sleep(pause_s)
            if self.lost.is_set():
                return  # or the lease, which nobody here stands for any more, would keep others waiting
            sent = time.monotonic()
            try:
                left_s = await self._client.lease_renew(self._lease, timeout_s=limit_s)
            except EtcdError as error:
                # The deadline is watched apart from this; here only: try again, soon and not in step with others.
                if not self._failing:
                    _log.warning("etcd lease renewal failed, trying again: %s", error)
                self._failing = True
                pause_s = backoff.next_s()
                continue
            if left_s == 0:
                self._lose("etcd says that it has expired")
                return
            if self._failing:
                _log.info("etcd lease renewal works again")
            self._failing = False
            backoff.reset()
            self._acknowledged(sent, left_s)
            pause_s = period_s * random.uniform(0.8, 1.0)

    async def _watch_deadline(self) -> None:
        # Renewals move the deadline while this sleeps.
        while (left_s := self._deadline - time.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(left_s)
        self._lose("no renewal was acknowledged in time")

    def _lose(self, why: str) -> None:
        if not self.lost.is_set():
            _log.error("etcd lease %x lost: %s", self._lease, why)
            self.lost.set()
