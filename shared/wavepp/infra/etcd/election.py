"""Leadership: the key that one process at a time holds, and the fencing token that proves it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self

from wavepp.core.errors import InvalidInputError
from wavepp.infra.backoff import Backoff
from wavepp.infra.etcd.errors import (
    EtcdAmbiguousError,
    EtcdError,
    EtcdLeaseNotFoundError,
    EtcdReadOnlyError,
    EtcdUnavailableError,
    FencedError,
    SessionLostError,
)
from wavepp.infra.etcd.session import Session
from wavepp.infra.etcd.types import DeleteOp, Fence, GetOp, KeyValue, PutOp, created_at, has_lease
from wavepp.infra.etcd.watch import Delete, events_after

_log = logging.getLogger(__name__)

REREAD_S: Final = 5.0
"""A waiting candidate reads the key again at least this often, whatever its watch says."""
RESIGN_TRIES: Final = 3
RESIGN_TIMEOUT_S: Final = 1.0


Rival = Callable[[KeyValue], Coroutine[Any, Any, None]]
"""Given another leader's key, as read: returns when that process is known to be gone, else never. Cancelled when that
leadership has ended."""


class _Watched:
    """One task for the present rival, whichever way its leadership is noticed to have ended."""

    def __init__(self, rival: Rival | None) -> None:
        self._rival = rival
        self._token = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._end()

    def of(self, leader: KeyValue) -> asyncio.Task[None] | None:
        if self._rival is not None and leader.create_revision != self._token:
            if self._task is not None:
                self._task.cancel()
            self._token = leader.create_revision
            self._task = asyncio.ensure_future(self._rival(leader))
        return self._task

    async def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class Election:
    """One candidate for one key. The key hangs on the session's lease, so it goes when the process goes.

    The token is the key's create revision: it grows with every new leader and every write guarded by it
    (a transaction that compares `fence`) is refused once somebody else leads.
    """

    def __init__(
        self, session: Session, key: str, value: bytes, *, rival: Rival | None = None, reread_s: float = REREAD_S
    ) -> None:
        """`value`: what the leader writes at `key`. `rival`: what is done about another leader."""
        self._session = session
        self._client = session.client
        self._key = key
        self._value = value
        self._rival = rival
        self._reread_s = reread_s
        self._token = 0

    @property
    def fence(self) -> Fence:
        """The proof of leadership to give to fenced writes. Raises InvalidInputError before `campaign` has won."""
        if not self._token:
            raise InvalidInputError(f"{self._key}: this process has not been elected")
        return Fence(self._key, self._token)

    async def campaign(self) -> int:
        """Wait until this process leads; returns the fencing token.

        Waits as long as it takes, also while etcd is unavailable. May be cancelled: then the key is given up again if
        the cancelled try had won it. Raises SessionLostError when the lease is lost first, and
        EtcdRequestError when etcd refuses the request itself.
        """
        lease = self._session.lease
        try:
            won = await self._session.until_lost(self._win(lease))
        except EtcdLeaseNotFoundError as error:
            raise SessionLostError(f"campaign for {self._key}: {error}") from error
        except asyncio.CancelledError:
            # The try may have been cancelled after etcd had applied it: nobody would know that this process leads.
            await self._give_up(has_lease_of=lease)
            raise
        self._token = won.create_revision
        return self._token

    async def resign(self) -> None:
        """Stop leading, so that another candidate leads at once. Does nothing if this process does not lead.

        Never raises EtcdError: if etcd is unavailable, the end of the lease does the same later.
        """
        token, self._token = self._token, 0
        if token:
            await self._give_up(token=token)

    async def until_not_held(self) -> None:
        """Return when the key is not this leader's any more: it was deleted or taken. An etcd that cannot be asked, or
        refuses, says nothing about that. Raises SessionLostError when the lease is lost.
        """
        if self._token:
            await self._session.until_lost(self._until_changed(self.fence))

    async def _win(self, lease: int) -> KeyValue:
        backoff = Backoff()
        async with _Watched(self._rival) as watched:
            while True:
                try:
                    result = await self._client.txn(
                        [created_at(self._key, 0)],
                        [PutOp(self._key, self._value, lease), GetOp(self._key)],
                        [GetOp(self._key)],
                    )
                except (EtcdAmbiguousError, EtcdUnavailableError, EtcdReadOnlyError) as error:
                    _log.warning("campaign for %s: %s", self._key, error)
                    await asyncio.sleep(backoff.next_s())
                    continue
                backoff.reset()
                held = result.results[-1]
                # Not succeeded, but our own lease: a try whose answer was lost had won.
                if held and (result.succeeded or held[0].lease == lease):
                    return held[0]
                if held and await self._until_free(held[0], result.revision, watched.of(held[0]), backoff):
                    await self._depose(held[0], backoff)

    async def _until_free(
        self, leader: KeyValue, revision: int, gone: asyncio.Task[None] | None, backoff: Backoff
    ) -> bool:
        """Return when it is time to look at the key again; True when the leader is known to be gone."""
        if gone is None:
            await self._until_deleted(revision, backoff)
            return False
        deleted = asyncio.ensure_future(self._until_deleted(revision, backoff))
        try:
            await asyncio.wait({deleted, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            deleted.cancel()
            await asyncio.gather(deleted, return_exceptions=True)
        if not gone.done():
            return False
        gone.result()  # a fault in the rival's watch must not look like its end
        return True

    async def _until_deleted(self, revision: int, backoff: Backoff) -> None:
        """Return when the key was deleted after `revision`, or when it is time to look again."""
        try:
            async with asyncio.timeout(self._reread_s):
                async with contextlib.aclosing(events_after(self._client, self._key, None, revision)) as events:
                    async for event in events:
                        if isinstance(event, Delete):
                            return
        except TimeoutError:
            return
        except EtcdError as error:
            _log.info("watch of %s ended, reading it again: %s", self._key, error)
            await asyncio.sleep(backoff.next_s())

    async def _depose(self, leader: KeyValue, backoff: Backoff) -> None:
        _log.warning("%s: its leader %d is gone, not waiting for its lease", self._key, leader.create_revision)
        try:
            # Should it live after all, its fenced writes are refused from now on.
            await self._client.fenced_delete(self._key, [Fence(self._key, leader.create_revision)])
        except FencedError:
            return
        except EtcdError as error:
            _log.warning("%s: %s", self._key, error)
            await asyncio.sleep(backoff.next_s())

    async def _until_changed(self, fence: Fence) -> None:
        backoff = Backoff()
        while True:
            try:
                snapshot = await self._client.get_prefix(fence.key)
            except EtcdError as error:
                _log.info("watch of own leadership %s: %s", fence.key, error)
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            held = next((item for item in snapshot.items if item.key == fence.key), None)
            if held is None or held.create_revision != fence.create_revision:
                return
            await self._until_deleted(snapshot.revision, backoff)

    async def _give_up(self, *, token: int = 0, has_lease_of: int = 0) -> None:
        own = created_at(self._key, token) if token else has_lease(self._key, has_lease_of)
        for _ in range(RESIGN_TRIES):
            try:
                await self._client.txn([own], [DeleteOp(self._key)], timeout_s=RESIGN_TIMEOUT_S)
            except EtcdAmbiguousError:
                continue  # deleting once more is harmless: the compare fails if it was applied
            except EtcdError as error:
                _log.warning("%s not given up, it ends with the lease: %s", self._key, error)
            return
