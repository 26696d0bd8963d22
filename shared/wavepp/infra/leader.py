"""Who leads: the value at a leadership's key, and how to know that whoever wrote it is gone."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wavepp.core.errors import WaveppError
from wavepp.infra.backoff import Backoff
from wavepp.infra.rpc import open_channel

ANSWER_TIMEOUT_S: Final = 3.0
REFUSAL_TIMEOUT_S: Final = 1.0


class LeaderError(WaveppError):
    """What stands at a leadership's key is not a leader's record."""


class Leader(BaseModel):
    """A process that leads, or would: where it listens, and which process it is (no two have the same instance).

    The health service at `address` knows it under the name `instance`.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    address: str = Field(min_length=1, max_length=260)
    instance: str = Field(min_length=1, max_length=64)

    def encode(self) -> bytes:
        """As it stands in etcd."""
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls, value: bytes) -> Leader:
        """Raises LeaderError when this is no such record."""
        try:
            return cls.model_validate_json(value)
        except ValidationError as error:
            raise LeaderError(f"not a leader's record: {error.errors()[0]['msg']}") from error


def new_instance() -> str:
    """A name that no process had before."""
    return uuid.uuid4().hex[:16]


async def until_gone(leader: Leader, tell_ready: Callable[[bool], None]) -> None:
    """Return when the process is certainly gone: another one answers at its address, or it was there and now its host
    refuses connections. One that is silent may be alive: then this waits, and its lease decides.

    `tell_ready` hears whether it is ready, by its own word. Costs one open stream, and nothing while nothing changes.
    """
    backoff = Backoff()
    seen = False
    while True:
        try:
            async with open_channel(leader.address) as channel:
                watch = health_pb2_grpc.HealthStub(channel).Watch(
                    health_pb2.HealthCheckRequest(service=leader.instance)
                )
                async with asyncio.timeout(ANSWER_TIMEOUT_S) as limit:
                    async for answer in watch:
                        limit.reschedule(None)
                        if answer.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
                            return
                        seen = True
                        backoff.reset()
                        tell_ready(answer.status == health_pb2.HealthCheckResponse.SERVING)
        except (grpc.aio.AioRpcError, TimeoutError):
            pass
        finally:
            tell_ready(False)
        # Never seen, a refusal may come from anything between here and there.
        if seen and await _refuses(leader.address):
            return
        await asyncio.sleep(backoff.next_s())


async def is_alive(process: Leader) -> bool:
    """Whether this very process answers, ready or not."""
    try:
        async with open_channel(process.address) as channel:
            question = health_pb2.HealthCheckRequest(service=process.instance)
            await health_pb2_grpc.HealthStub(channel).Check(question, timeout=ANSWER_TIMEOUT_S)
    except grpc.aio.AioRpcError:
        return False
    return True


async def _refuses(address: str) -> bool:
    """Whether the host is there and nobody listens."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(REFUSAL_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError, ValueError):
        return False
    writer.close()
    return False
