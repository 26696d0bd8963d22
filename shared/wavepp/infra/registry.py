"""Which stages of a pipeline are registered, as it changes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator

from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.keys import PipelineKeys
from wavepp.infra.etcd.types import KeyValue
from wavepp.infra.etcd.watch import Delete, Put, Reset, snapshot_watch
from wavepp.infra.registration import RegistrationError, StageRegistration

_log = logging.getLogger(__name__)


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
