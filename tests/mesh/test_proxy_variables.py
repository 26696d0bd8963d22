"""A proxy in the environment is for what is outside of a mesh: nothing within it goes there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mesh_support import QUICK, READY_S, eventually, running_mesh, write_profile
from wavepp.cli.local.cluster import ClusterSpec
from wavepp.cli.mesh.client import MeshClient
from wavepp.v1 import prefill_pb2

NOBODY = "http://127.0.0.1:1"


async def test_no_channel_of_a_mesh_asks_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, NOBODY)
        monkeypatch.setenv(name.upper(), NOBODY)
    for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    # etcd, the router's streams to directory and stages, the standby's to the leader, links, and the command's own.
    spec = ClusterSpec(
        tmp_path,
        write_profile(tmp_path / "profile.json"),
        2,
        routers=2,
        common_arguments=QUICK,
        stage_arguments=("--link", "socket"),
    )
    with running_mesh(spec, quiet_logs=True) as mesh:
        for address in mesh.addresses:
            with MeshClient(address) as client:

                async def ready(client: MeshClient = client) -> str:
                    return await asyncio.to_thread(client.health, "")

                await eventually(ready, lambda said: said == "SERVING", READY_S)
                answer = client.prefill(prefill_pb2.PrefillRequest(token_bytes=bytes(400)), 20)
                assert answer.response.prompt_tokens == 100
                assert client.status().state == "serving"
