"""Following a prefix: a snapshot, then every change in order, through disconnects and compactions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from wavepp.infra.backoff import Backoff
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.errors import EtcdCompactedError, EtcdUnavailableError
from wavepp.infra.etcd.types import KeyValue, decode_key, prefix_end

_log = logging.getLogger(__name__)
_DELETE = 1  # mvccpb.Event.DELETE


@dataclass(frozen=True, slots=True)
class Reset:
    """Forget what was known: these are all keys under the prefix, as of `revision`."""

    items: tuple[KeyValue, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Put:
    """A key was written."""

    item: KeyValue


@dataclass(frozen=True, slots=True)
class Delete:
    """A key was deleted, or went with its lease."""

    key: str
    mod_revision: int


async def events_after(
    client: EtcdClient, key: str, end: bytes | None, revision: int, *, must_know: bool = False
) -> AsyncGenerator[Put | Delete, None]:
    """The changes of `key` (or of [key, end)) after `revision`, in order, on one stream; never retries.

    Ends by EtcdCompactedError when the changes are no longer all there, or, with `must_know`, when etcd has not even
    reached `revision`: it was restored from a backup and would stay silent until it has. EtcdUnavailableError when the
    stream breaks.
    """
    async with contextlib.aclosing(client.watch_stream(key, end or b"", revision + 1)) as responses:
        async for response in responses:
            # etcd says this once, and then nothing for ever.
            if response.canceled:
                if response.compact_revision:
                    raise EtcdCompactedError(
                        f"changes of {key} after revision {revision} are gone, "
                        f"etcd has compacted up to {response.compact_revision}"
                    )
                raise EtcdUnavailableError(f"etcd ended the watch of {key}: {response.cancel_reason}")
            if response.created and must_know and response.header.revision < revision:
                raise EtcdCompactedError(
                    f"etcd is at revision {response.header.revision}, before {revision} that was seen already"
                )
            for event in response.events:
                yield _event(event)


async def snapshot_watch(client: EtcdClient, prefix: str) -> AsyncGenerator[Reset | Put | Delete, None]:
    """Everything under `prefix`: `Reset` first, then each change; never ends by itself.

    After a disconnect it goes on after the last change seen, so nothing is missed and nothing comes twice; where that
    is not possible (compaction, restored data) another `Reset` comes. While etcd is unavailable nothing comes. Raises
    EtcdRequestError when etcd refuses the request itself. Close it (`contextlib.aclosing`) if you stop early.
    """
    backoff = Backoff()
    seen: int | None = None
    resumed = False
    while True:
        try:
            if seen is None:
                snapshot = await client.get_prefix(prefix)
                seen, resumed = snapshot.revision, False
                yield Reset(snapshot.items, snapshot.revision)
            stream = events_after(client, prefix, prefix_end(prefix), seen, must_know=resumed)
            async with contextlib.aclosing(stream) as events:
                async for event in events:
                    # Not the response's own revision: a response may carry a part of what is due, and that revision
                    # is the store's.
                    seen = event.item.mod_revision if isinstance(event, Put) else event.mod_revision
                    backoff.reset()
                    resumed = False
                    yield event
        except EtcdCompactedError as error:
            _log.warning("watch of %s: listing again: %s", prefix, error)
            seen = None
        except EtcdUnavailableError as error:
            # Once for each disconnect, not for each try.
            level = logging.DEBUG if resumed else logging.WARNING
            _log.log(level, "watch of %s: going on after revision %s when etcd is back: %s", prefix, seen, error)
            resumed = True
        await asyncio.sleep(backoff.next_s())


def _event(pb: Any) -> Put | Delete:
    if pb.type == _DELETE:
        return Delete(decode_key(pb.kv.key), int(pb.kv.mod_revision))
    return Put(KeyValue.from_proto(pb.kv))
