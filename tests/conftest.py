"""Fixtures that need real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from etcd_support import LossyProxy
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.server import EtcdServer

# A restarted etcd waits for about one election before it serves.
_QUICK = ("--heartbeat-interval=50", "--election-timeout=500")


@pytest.fixture(scope="session")
def etcd_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of an etcd that all tests share; use a key prefix of your own."""
    directory = tmp_path_factory.mktemp("etcd")
    server = EtcdServer(directory / "data", directory / "etcd.log", fsync=False, flags=_QUICK)
    server.start()
    try:
        yield server.endpoint
    finally:
        server.stop()


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """An etcd for this test alone, to be stopped, frozen and started again."""
    server = EtcdServer(tmp_path / "data", tmp_path / "etcd.log", fsync=False, flags=_QUICK)
    server.start()
    try:
        yield server
    finally:
        server.stop(timeout_s=1.0)


@pytest.fixture
def etcd_prefix(request: pytest.FixtureRequest) -> str:
    """A key prefix that no other test uses."""
    return f"/{request.node.nodeid}/"


@pytest.fixture
async def etcd(etcd_endpoint: str) -> AsyncIterator[EtcdClient]:
    """A client of the shared etcd."""
    async with EtcdClient([etcd_endpoint]) as client:
        yield client


@pytest.fixture
async def etcd_proxy(etcd_endpoint: str) -> AsyncIterator[LossyProxy]:
    """A proxy before the shared etcd."""
    proxy = LossyProxy(etcd_endpoint)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()
