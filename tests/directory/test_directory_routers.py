"""Which router a directory listens to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from directory_support import STAGE
from wavepp.core.errors import PeerProtocolError
from wavepp.directory.config import DirectoryConfig
from wavepp.directory.leadership import Leadership
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.session import Session
from wavepp.infra.etcd.types import Fence, Snapshot
from wavepp.infra.metrics import Metrics
from wavepp.infra.outbox import Outbox
from wavepp.infra.tasks import TaskOwner
from wavepp.v1 import directory_pb2


class EmptyLedger:
    """An etcd without a record."""

    async def get_prefix(self, _prefix: str) -> Snapshot:
        return Snapshot((), 1)


class Directory:
    """One that leads a pipeline of one stage, which does not answer."""

    def __init__(self, tasks: TaskOwner) -> None:
        self.config = DirectoryConfig()
        self.leadership = Leadership(self.config, cast(EtcdClient, EmptyLedger()), Metrics(), tasks)

    async def lead(self) -> None:
        self.leadership.stages_changed({0: STAGE})
        await self.leadership.begin(Fence("directory", 3), cast(Session, None))

    def hello(self, token: int, alignment_tokens: int = 32) -> Outbox[Any]:
        """A router says hello; its outbox."""
        outbox: Outbox[Any] = Outbox()
        hello = directory_pb2.AdmissionHello(
            cluster=self.config.cluster,
            pipeline=self.config.pipeline,
            router_token=token,
            alignment_tokens=alignment_tokens,
        )
        self.leadership.router_hello(hello, outbox)
        return outbox

    def close(self) -> None:
        self.leadership.step_down()


@pytest.fixture
async def directory() -> AsyncIterator[Directory]:
    async with TaskOwner(asyncio.Event()) as tasks:
        made = Directory(tasks)
        await made.lead()
        yield made
        made.close()


async def test_a_newer_leaders_stream_ends_the_one_before(directory: Directory) -> None:
    first = directory.hello(5)
    second = directory.hello(6)
    assert first.closed
    assert not second.closed


async def test_a_router_that_connects_again_replaces_its_own_stream(directory: Directory) -> None:
    first = directory.hello(5)
    assert not directory.hello(5).closed
    assert first.closed


@pytest.mark.parametrize("token", [0, 4])
async def test_a_deposed_router_does_not_end_the_leaders_stream(directory: Directory, token: int) -> None:
    leader = directory.hello(5)
    with pytest.raises(PeerProtocolError, match=f"router {token} is deposed, 5 leads"):
        directory.hello(token)
    assert not leader.closed


async def test_a_router_that_does_not_fit_leaves_the_leaders_ledger_alone(directory: Directory) -> None:
    leader = directory.hello(5)
    writers = ledger_tasks()
    with pytest.raises(PeerProtocolError, match="aligns endpoints to 48 tokens"):
        directory.hello(6, alignment_tokens=48)
    assert not leader.closed
    assert len(writers) == 1
    assert ledger_tasks() == writers
    assert not any(task.cancelling() for task in writers)


def ledger_tasks() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "ledger"]
