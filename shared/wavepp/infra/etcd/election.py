"""Leadership: the key that one process at a time holds, and the fencing token that proves it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from wavepp.core.errors import InvalidInputError
from wavepp.infra.backoff import Backoff
from wavepp.infra.etcd.errors import (
    EtcdAmbiguousError,
    EtcdError,
    EtcdLeaseNotFoundError,
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


class Election:
    """One candidate for one key. The key hangs on the session's lease, so it goes when the process goes.

    The token is the key's create revision: it grows with every new leader and every write guarded by it
    (a transaction that compares `fence`) is refused once somebody else leads.
    """

    def __init__(self, session: Session, key: str, *, reread_s: float = REREAD_S) -> None:
        self._session = session
        self._client = session.client
        self._key = key
        self._reread_s = reread_s
        self._token = 0

    @property
    def fence(self) -> Fence:
        """The proof of leadership to give to fenced writes. Raises InvalidInputError before `campaign` has won."""
        if not self._token:
            raise InvalidInputError(f"{self._key}: this process has not been elected")
        return Fence(self._key, self._token)

    async def campaign(self, value: bytes) -> int:
        """Wait until this process leads with `value` at the key; returns the fencing token.

        Waits as long as it takes, also while etcd is unavailable. May be cancelled: then the key is given up again if
        the cancelled try had won it. Raises SessionLostError when the lease is lost first, and
        EtcdRequestError when etcd refuses the request itself.
        """
        lease = self._session.lease
        try:
            won = await self._session.until_lost(self._win(value, lease))
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

    async def wait_deposed(self) -> None:
        """Return when this process no longer leads: the key was deleted or taken, or the session was lost."""
        if self._token:
            with contextlib.suppress(EtcdError):
                await self._session.until_lost(self._until_changed(self.fence))

    async def _win(self, value: bytes, lease: int) -> KeyValue:
        backoff = Backoff()
        while True:
            try:
                result = await self._client.txn(
                    [created_at(self._key, 0)],
                    [PutOp(self._key, value, lease), GetOp(self._key)],
                    [GetOp(self._key)],
                )
            except (EtcdAmbiguousError, EtcdUnavailableError) as error:
                _log.warning("campaign for %s: %s", self._key, error)
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            held = result.results[-1]
            # Not succeeded, but our own lease: a try whose answer was lost had won.
            if held and (result.succeeded or held[0].lease == lease):
                return held[0]
            await self._until_gone(result.revision, backoff)

    async def _until_gone(self, revision: int, backoff: Backoff) -> None:
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

    async def _until_changed(self, fence: Fence) -> None:
        backoff = Backoff()
        while True:
            try:
                result = await self._client.txn([], [GetOp(fence.key)])
            except EtcdUnavailableError as error:
                # etcd unavailable is no loss of leadership: that is what the session's deadline decides.
                _log.info("watch of own leadership %s: %s", fence.key, error)
                await asyncio.sleep(backoff.next_s())
                continue
            held = result.results[0]
            if not held or held[0].create_revision != fence.create_revision:
                return
            await self._until_gone(result.revision, backoff)

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


async def depose(session: Session, leader: KeyValue) -> bool:
    """Take the leadership `leader` (as read from etcd) away from a process known to be dead; False if it had ended.

    Whoever held it finds its fenced writes refused from now on. May raise EtcdError.
    """
    try:
        await session.client.fenced_delete(leader.key, [Fence(leader.key, leader.create_revision)])
    except FencedError:
        return False
    return True


async def depose_predecessor(session: Session, key: str, value: bytes) -> bool:
    """Depose whoever leads at `key` under this very `value`, without waiting for its lease; True if there was one.

    Only for values that name something which this process holds exclusively now, such as a socket's address: then the
    leader that wrote it is dead, or is this process under a lease that it lost. May raise EtcdError.
    """
    held = await session.client.get(key)
    if held is None or held.value != value or held.lease == session.lease:
        return False
    _log.info("%s: the leader before had this process' own address, so it is gone", key)
    return await depose(session, held)
