"""Where processes listen, and under which addresses they find each other: IPv6, and all addresses at once."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from mesh_support import QUICK, open_client, running_mesh, write_profile
from wavepp.cli.local.cluster import ClusterSpec, LocalCluster
from wavepp.cli.main import app

PROMPT = range(200)
V6 = ("--bind-host", "::1")
ALL_V4 = ("--bind-host", "0.0.0.0", "--advertise-address", "127.0.0.1")
ALL_V6 = ("--bind-host", "::", "--advertise-address", "[::1]")


def require_ipv6() -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")


@pytest.fixture(scope="module")
def mesh_on_ipv6(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Everything on ::1, etcd included."""
    require_ipv6()
    run_dir = tmp_path_factory.mktemp("ipv6")
    spec = ClusterSpec(
        run_dir,
        write_profile(run_dir / "profile.json"),
        2,
        host="::1",
        common_arguments=(*QUICK, *V6),
        stage_arguments=("--link", "socket"),
    )
    with running_mesh(spec, quiet_logs=True) as cluster:
        yield cluster


def test_a_mesh_on_loopback_listens_nowhere_else(mesh: LocalCluster) -> None:
    for name, pid in mesh.pids.items():
        found = {c.laddr.ip for c in psutil.Process(pid).net_connections() if c.status == "LISTEN"}
        assert found, name
        assert found <= {"127.0.0.1", "::ffff:127.0.0.1"}, name


async def test_a_mesh_on_ipv6_answers(mesh_on_ipv6: LocalCluster) -> None:
    assert mesh_on_ipv6.address.startswith("[::1]:")
    async with open_client(mesh_on_ipv6.address) as client:
        await client.answer(PROMPT, 2)
        status = await client.status()
    addresses = [status.router.address, status.directory.address, *(stage.address for stage in status.stages)]
    assert len(addresses) == 4
    assert all(address.startswith("[::1]:") for address in addresses), addresses


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["prefill", "--address", "{}", "--tokens", "1,2,3"], "first token"),
        (["status", "--address", "{}"], "serving"),
        (["health", "{}"], "SERVING"),
        (["trace", "--address", "{}", "--out", "{dir}/trace.json"], "trace.json"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_reach_a_mesh_on_ipv6(
    arguments: list[str], says: str, mesh_on_ipv6: LocalCluster, tmp_path: Path
) -> None:
    filled = [each.format(mesh_on_ipv6.address, dir=tmp_path) for each in arguments]
    result = CliRunner().invoke(app, filled, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert says in result.output


async def test_a_mesh_that_listens_on_all_addresses_answers_on_the_advertised_ones(tmp_path: Path) -> None:
    require_ipv6()
    spec = ClusterSpec(
        tmp_path,
        write_profile(tmp_path / "profile.json"),
        2,
        host="::1",
        common_arguments=QUICK,
        router_arguments=ALL_V6,
        directory_arguments=ALL_V4,
        per_stage={0: ALL_V4, 1: (*ALL_V6, "--link-host", "127.0.0.1")},
    )
    with running_mesh(spec, quiet_logs=True) as cluster:
        async with open_client(cluster.address) as client:
            await client.answer(PROMPT, 2)
