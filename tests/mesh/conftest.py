"""The mesh that most tests share. Tests with special needs start their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from mesh_support import QUICK, MeshClient, open_client, running_mesh, write_profile
from wavepp.cli.local.cluster import ClusterSpec, LocalCluster


@pytest.fixture(scope="session")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the shared mesh's router writes its spans."""
    return tmp_path_factory.mktemp("traces") / "spans.jsonl"


@pytest.fixture(scope="session")
def profile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model of the shared mesh."""
    return write_profile(tmp_path_factory.mktemp("profile") / "shared.json")


@pytest.fixture(scope="session")
def mesh(tmp_path_factory: pytest.TempPathFactory, profile: str, trace_file: Path) -> Iterator[LocalCluster]:
    """Two stages over UCX, every invariant checked after every event. Nothing in it breaks."""
    spec = ClusterSpec(
        tmp_path_factory.mktemp("mesh"),
        profile,
        2,
        common_arguments=QUICK,
        stage_arguments=("--link", "ucx", "--blocks", "512", "--validate-invariants"),
        router_arguments=("--trace-file", str(trace_file)),
    )
    with pytest.MonkeyPatch.context() as patch:
        # Spans are written when they end, not up to 5 s later.
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        with running_mesh(spec, quiet_logs=True) as cluster:
            yield cluster


@pytest.fixture
async def client(mesh: LocalCluster) -> AsyncIterator[MeshClient]:
    """A client of the shared mesh."""
    async with open_client(mesh.address) as found:
        yield found
