"""Who is there, as it changes: the stages of a pipeline, and who leads."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.keys import PipelineKeys
from wavepp.infra.etcd.types import KeyValue
from wavepp.infra.etcd.watch import Delete, Put, Reset, snapshot_watch
from wavepp.infra.leader import Leader, LeaderError
from wavepp.infra.registration import RegistrationError, StageRegistration

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Leading:
    """A leadership: whose, and its token."""

    leader: Leader
    token: int


async def watch_leader(client: EtcdClient, key: str) -> AsyncGenerator[Leading | None, None]:
    """Who leads at `key`, first as it is and then after every change; None: nobody. Never ends by itself."""
    async with contextlib.aclosing(snapshot_watch(client, key)) as events:
        async for event in events:
            match event:
                case Reset():
                    found = [item for item in event.items if item.key == key]
                    yield _leading(found[0]) if found else None
                case Put() if event.item.key == key:
                    yield _leading(event.item)
                case Delete() if event.key == key:
                    yield None


def _leading(item: KeyValue) -> Leading | None:
    try:
        return Leading(Leader.decode(item.value), item.create_revision)
    except LeaderError as error:
        _log.warning("%s: %s", item.key, error)
        return None


async def watch_registrations(
    client: EtcdClient, keys: PipelineKeys
) -> AsyncGenerator[dict[int, StageRegistration], None]:
    """The registered stages by index, first as they are and then after every change; never ends by itself."""
    held: dict[str, StageRegistration] = {}
    async with contextlib.aclosing(snapshot_watch(client, keys.stages)) as events:
        async for event in events:
            match event:
                case Reset():
                    held = {}
                    for item in event.items:
                        _take(held, item)
                case Put():
                    _take(held, event.item)
                case Delete():
                    held.pop(event.key, None)
            yield {r.stage: r for r in held.values()}


def _take(held: dict[str, StageRegistration], item: KeyValue) -> None:
    try:
        held[item.key] = StageRegistration.decode(item.value)
    except RegistrationError as error:
        _log.warning("%s: %s", item.key, error)
