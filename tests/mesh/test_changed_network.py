"""Stages in network namespaces, whose interface or address becomes another one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from perf.networks import Bridge, Container, NetworkUnavailableError

from mesh_support import NOT_SERVING, QUICK, MeshClient, eventually, open_client, running_mesh, write_profile
from wavepp.cli.local.cluster import ClusterSpec, LocalCluster

ENDS_WITHIN_S = 20.0
PROMPT = [1, 2, 3]


@asynccontextmanager
async def two_containers(run_dir: Path, link: str) -> AsyncIterator[tuple[LocalCluster, Container, MeshClient]]:
    """Two stages, each in a container; the second one's, and a client."""
    with ExitStack() as stack:
        try:
            bridge = stack.enter_context(Bridge())
            containers = [bridge.container(), bridge.container()]
        except NetworkUnavailableError as error:
            pytest.skip(f"needs network namespaces: {error}")
        spec = ClusterSpec(
            run_dir,
            write_profile(run_dir / "profile.json"),
            2,
            common_arguments=QUICK,
            stage_arguments=("--link", link),
            per_stage={i: ("--bind-host", made.address) for i, made in enumerate(containers)},
            host=bridge.host,
            launchers={f"stage-{i}": made.launcher for i, made in enumerate(containers)},
        )
        with running_mesh(spec, quiet_logs=False) as cluster:
            async with open_client(cluster.address) as client:
                yield cluster, containers[1], client


async def ended(cluster: LocalCluster, stage: int) -> int:
    """The exit code of a stage that ends by itself."""
    child = cluster.stages[stage].child
    assert child is not None

    async def code() -> int | None:
        return child.poll()

    found = await eventually(code, lambda code: code is not None, ENDS_WITHIN_S)
    assert found is not None
    return found


def lose_the_link(cluster: LocalCluster) -> None:
    """The first stage is another process."""
    cluster.stages[0].stop()
    cluster.stages[0].start()


async def test_a_stage_whose_interface_became_another_one_ends_when_its_link_breaks(tmp_path: Path) -> None:
    async with two_containers(tmp_path, "ucx") as (cluster, container, client):
        await client.answer(PROMPT)
        container.disconnect()
        container.connect("eth1")
        await client.answer(PROMPT)  # the link has outlived it, so that there is no reason to load the model again
        assert cluster.stages[1].running
        lose_the_link(cluster)
        assert await ended(cluster, 1) == 1
        assert "on eth1 (index" in cluster.stages[1].last_words()
        cluster.stages[1].start()
        await client.answer(PROMPT)


@pytest.mark.long
async def test_links_over_sockets_come_up_over_another_interface(tmp_path: Path) -> None:
    async with two_containers(tmp_path, "socket") as (cluster, container, client):
        before = await client.status()
        container.disconnect()
        container.connect("eth1")
        lose_the_link(cluster)
        await client.answer(PROMPT)
        after = await client.status()
        assert after.pipeline_epoch > before.pipeline_epoch
        assert after.stages[1].incarnation == before.stages[1].incarnation


@pytest.mark.long
@pytest.mark.parametrize("link", ["ucx", "socket"])
async def test_a_stage_whose_address_became_another_one_ends(tmp_path: Path, link: str) -> None:
    async with two_containers(tmp_path, link) as (cluster, container, _client):
        container.disconnect()
        container.connect("eth0", container.address + "7")
        assert await ended(cluster, 1) == 1
        assert f"the address {container.address} is gone" in cluster.stages[1].last_words()


@pytest.mark.long
async def test_a_stage_that_nobody_reaches_for_a_while_goes_on_as_the_same_process(tmp_path: Path) -> None:
    async with two_containers(tmp_path, "ucx") as (cluster, container, client):
        before = await client.status()
        container.black_hole()
        await eventually(client.readiness, lambda found: found == NOT_SERVING, ENDS_WITHIN_S)
        container.heal()
        await client.answer(PROMPT)
        after = await client.status()
        assert [s.pid for s in after.stages] == [s.pid for s in before.stages]
        assert all(stage.running for stage in cluster.stages)
