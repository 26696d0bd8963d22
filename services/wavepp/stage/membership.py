"""A stage's place in etcd: its registration on the process' lease, and a new incarnation when that is lost."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from typing import Final

import grpc

from wavepp.core.ids import Incarnation
from wavepp.infra.backoff import Backoff
from wavepp.infra.errors import StartupError
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.errors import EtcdError
from wavepp.infra.etcd.keys import PipelineKeys
from wavepp.infra.etcd.session import Session
from wavepp.infra.etcd.types import PutOp, created_at
from wavepp.infra.registration import RegistrationError, StageRegistration, check_fit
from wavepp.infra.rpc import open_channel
from wavepp.v1 import stage_pb2, stage_pb2_grpc

_log = logging.getLogger(__name__)

PROBE_TIMEOUT_S: Final = 1.0
OWN_KEY_CHECK_S: Final = 2.0


def new_incarnation() -> Incarnation:
    """An identity that no process had before."""
    return Incarnation(uuid.uuid4().hex[:16])


class Membership:
    """Keeps the stage registered. `begin` and `end` tell the worker which incarnation it is, or that it is none."""

    def __init__(
        self,
        client: EtcdClient,
        keys: PipelineKeys,
        registration: StageRegistration,
        lease_ttl_s: int,
        *,
        begin: Callable[[Incarnation], None],
        end: Callable[[], None],
    ) -> None:
        self._client = client
        self._keys = keys
        self._registration = registration
        self._lease_ttl_s = lease_ttl_s
        self._begin = begin
        self._end = end
        self._session: Session | None = None

    async def join(self) -> None:
        """Register for the first time. Raises StartupError when etcd is unavailable or the stage does not fit."""
        try:
            for other in await _neighbours(self._client, self._keys, self._registration.stage):
                check_fit(self._registration, other)
            await self._register()
        except RegistrationError as error:
            raise StartupError(str(error)) from error
        except EtcdError as error:
            raise StartupError(f"etcd: {error}") from error

    async def keep(self) -> None:
        """Stay registered for ever; a task of the process."""
        backoff = Backoff()
        while True:
            if self._session is not None:
                if not await self._until_gone(self._session) and await self._stay():
                    continue
                await self.close()
            try:
                await self._register()
                backoff.reset()
            except (EtcdError, StartupError) as error:
                _log.warning("not registered, trying again: %s", error)
                await asyncio.sleep(backoff.next_s())

    async def close(self) -> None:
        """Leave: the registration goes at once. Not while `keep` runs: it would register the stage again."""
        self._end()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # ---- inside ----

    async def _stay(self) -> bool:
        """Register again as the same incarnation, on a new lease: this process lost sight of etcd, and maybe of nothing
        else. Waits for etcd as long as it takes; False when another process has the place now.
        """
        key, backoff = self._keys.stage(self._registration.stage), Backoff()
        while True:
            session = Session(self._client, self._lease_ttl_s)
            try:
                await session.start()
                put = PutOp(key, self._registration.encode(), session.lease)
                result = await self._client.txn([created_at(key, 0)], [put])
                if result.succeeded:
                    lost, self._session = self._session, session
                    break
            except EtcdError as error:
                _log.warning("not registered again, trying on: %s", error)
                result = None
            finally:
                if self._session is not session:
                    await session.close()
            if result is not None:
                return False
            await asyncio.sleep(backoff.next_s())
        if lost is not None:
            await lost.close()
        _log.warning("registered again on a new lease, incarnation %s", self._registration.incarnation)
        return True

    async def _register(self) -> None:
        await check_free(self._client, self._keys, self._registration.stage, self._registration.address)
        # From the start, so that `close` finds it: this may be cancelled.
        self._session = session = Session(self._client, self._lease_ttl_s)
        incarnation = new_incarnation()
        self._registration = registration = self._registration.model_copy(update={"incarnation": incarnation})
        try:
            await session.start()
            # The stage must know who it is before anybody can read it in etcd.
            self._begin(incarnation)
            await self._client.put(self._keys.stage(registration.stage), registration.encode(), session.lease)
        except EtcdError:
            await self.close()
            raise
        _log.info("registered as stage %d, incarnation %s", registration.stage, incarnation)

    async def _until_gone(self, session: Session) -> bool:
        """Return when the lease is lost, or, True, when somebody else has taken this stage's key."""
        key = self._keys.stage(self._registration.stage)
        while not session.lost.is_set():
            try:
                async with asyncio.timeout(OWN_KEY_CHECK_S):
                    await session.lost.wait()
            except TimeoutError:
                try:
                    held = await self._client.get(key)
                    if held is not None and held.lease != session.lease:
                        _log.error("another process has taken %s: this one steps back", key)
                        return True
                    if held is None:
                        _log.error("%s is gone: registering again", key)
                        return False
                except EtcdError:
                    continue
        return False


async def check_place(client: EtcdClient, keys: PipelineKeys, expected: StageRegistration) -> None:
    """Raises StartupError when the stage could not be registered, as far as that is known before it is loaded.

    What only loading tells (`cache_dtype`) counts as fitting.
    """
    try:
        for other in await _neighbours(client, keys, expected.stage):
            check_fit(expected.model_copy(update={"cache_dtype": other.cache_dtype}), other)
        await check_free(client, keys, expected.stage)
    except RegistrationError as error:
        raise StartupError(str(error)) from error
    except EtcdError as error:
        raise StartupError(f"etcd: {error}") from error


async def check_free(client: EtcdClient, keys: PipelineKeys, stage: int, own_address: str = "") -> None:
    """Raises StartupError when a living process is registered as this stage. A dead one's entry is simply replaced."""
    held = await client.get(keys.stage(stage))
    if held is None:
        return
    try:
        other = StageRegistration.decode(held.value)
    except RegistrationError:
        return
    if other.address == own_address:
        return
    async with open_channel(other.address) as channel:
        stub = stage_pb2_grpc.StageServiceStub(channel)
        try:
            status = await stub.GetStageStatus(stage_pb2.GetStageStatusRequest(), timeout=PROBE_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return
    if status.incarnation == other.incarnation:
        raise StartupError(
            f"stage {other.stage} of pipeline {keys.pipeline} runs already at {other.address}; stop it "
            "first, or choose another pipeline"
        )


async def _neighbours(client: EtcdClient, keys: PipelineKeys, stage: int) -> list[StageRegistration]:
    found = []
    for item in (await client.get_prefix(keys.stages)).items:
        try:
            other = StageRegistration.decode(item.value)
        except RegistrationError as error:
            _log.warning("%s: %s", item.key, error)
            continue
        if other.stage != stage:
            found.append(other)
    return found
