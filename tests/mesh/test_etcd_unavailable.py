"""etcd stops for longer than a lease, or has no space: what runs goes on, what is new waits, nothing restarts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from emulated_support import emulated_answer
from mesh_support import QUICK, SERVING, MeshClient, eventually, open_client, running_mesh, write_profile
from wavepp.cli.local.cluster import ClusterSpec, LocalCluster
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.errors import EtcdReadOnlyError
from wavepp.infra.etcd.server import EtcdServer
from wavepp.v1 import prefill_pb2

LEASE_S = 5
AWAY_S = 1.5 * LEASE_S


@pytest.fixture(scope="module")
def mesh_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two stages whose steps take 20 ms."""
    run_dir = tmp_path_factory.mktemp("etcd-away")
    spec = ClusterSpec(
        run_dir,
        write_profile(run_dir / "profile.json", launch_ms=20.0),
        2,
        common_arguments=("--lease-ttl-s", str(LEASE_S), "--log-format", "json", "--etcd-timeout-s", "1"),
        stage_arguments=("--link", "socket", "--validate-invariants"),
    )
    with running_mesh(spec, quiet_logs=True) as cluster:
        yield cluster


@pytest.fixture
async def client(mesh_of_its_own: LocalCluster) -> AsyncIterator[MeshClient]:
    async with open_client(mesh_of_its_own.address) as found:
        yield found


def identities(status: prefill_pb2.GetStatusResponse) -> tuple[object, ...]:
    """What changes when anything restarts."""
    stages = tuple((s.stage, s.incarnation, s.pid) for s in status.stages)
    return stages, status.pipeline_epoch, status.directory_epoch


async def test_work_goes_on_while_etcd_is_away(mesh_of_its_own: LocalCluster, client: MeshClient) -> None:
    etcd = mesh_of_its_own.etcd
    assert etcd is not None
    before = await client.status()
    prompt, vocab, budget = list(range(300)), 32_000, 250
    call = client.stream(prompt, max_tokens=budget)
    assert (await call.read()).token.index == 0

    await asyncio.to_thread(etcd.stop)
    stopped = time.monotonic()
    late = [asyncio.create_task(client.answer(list(range(i, 500)), 2)) for i in range(3)]
    tokens = [emulated_answer(prompt, 1, vocab)[0]]
    while time.monotonic() < stopped + AWAY_S:
        event = await asyncio.wait_for(call.read(), 2.0)
        assert event.WhichOneof("event") == "token", "the budget is for longer than etcd is unavailable"
        tokens.append(event.token.token_id)
    during = await client.status()
    assert not any(task.done() for task in late), "a grant was made that no ledger holds"
    assert during.state.startswith("degraded: etcd is unavailable")
    assert during.router.running == 1
    await asyncio.to_thread(etcd.start)

    for answer in await asyncio.gather(*late):
        assert answer.attempts == 1
    while (event := await call.read()).WhichOneof("event") == "token":
        tokens.append(event.token.token_id)
    assert event.done.attempts == 1
    assert list(event.done.token_ids) == tokens == emulated_answer(prompt, budget, vocab)
    after = await eventually(client.status, lambda s: s.state == "serving", 10.0)
    assert identities(before) == identities(during) == identities(after)
    await client.quiet()


async def fill(etcd: EtcdClient) -> None:
    for i in range(2000):
        await etcd.put(f"/junk/{i}", b"x" * 200_000)


@pytest.mark.long
async def test_an_etcd_without_space_deposes_nobody_and_the_status_says_what_is_wrong(tmp_path: Path) -> None:
    full = EtcdServer(tmp_path / "etcd", tmp_path / "etcd.log", fsync=False, flags=("--quota-backend-bytes=2000000",))
    await asyncio.to_thread(full.start)
    try:
        spec = ClusterSpec(
            tmp_path,
            write_profile(tmp_path / "profile.json", launch_ms=20.0),
            2,
            etcd_endpoints=full.endpoint,
            common_arguments=QUICK,
            stage_arguments=("--link", "socket"),
        )
        with running_mesh(spec, quiet_logs=False) as cluster:
            async with open_client(cluster.address) as client, EtcdClient([full.endpoint]) as etcd:
                before = await client.status()
                prompt, budget = list(range(300)), 300
                running = asyncio.create_task(client.answer(prompt, budget))
                await eventually(client.status, lambda s: s.router.running == 1)
                with pytest.raises(EtcdReadOnlyError):
                    await fill(etcd)
                waiting = asyncio.create_task(client.answer(list(range(5, 200)), timeout=30))
                during = await eventually(client.status, lambda s: "space" in s.state)
                assert during.state.startswith("degraded: directory: the ledger is not written: ")
                assert await client.readiness() == SERVING
                await running
                assert identities(before) == identities(await client.status())
                assert not waiting.done()
                waiting.cancel()
    finally:
        await asyncio.to_thread(full.stop)
