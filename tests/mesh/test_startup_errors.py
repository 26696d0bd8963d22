"""A process that cannot start says why in one log entry and ends with an exit code other than 0."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mesh_support import MeshClient, write_profile
from wavepp.cli.local.cluster import LocalCluster, free_port

LIMIT_S = 30.0
"""For a start that fails, on a busy machine; most of it is Python's imports."""

STAGE = ("--stage", "0", "--stages", "2")


def start(service: str, *arguments: str) -> tuple[int, str]:
    """Exit code, and what the only line says that is no log entry of what went well before."""
    ended = subprocess.run(
        [sys.executable, "-m", f"wavepp.{service}", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
        text=True,
    )
    assert not ended.stdout
    lines = [line for line in ended.stderr.splitlines() if not is_info(line)]
    assert len(lines) == 1, ended.stderr
    entry = json.loads(lines[0])
    assert entry["level"] == "critical"
    return ended.returncode, str(entry["msg"])


def is_info(line: str) -> bool:
    try:
        return json.loads(line)["level"] in ("debug", "info", "warning")
    except ValueError:
        return False


def service_arguments(service: str, model: str) -> tuple[str, ...]:
    return (*STAGE, "--model", model) if service == "stage" else ()


@pytest.mark.parametrize("service", ["router", "directory", "stage"])
def test_etcd_that_cannot_be_reached(service: str, profile: str) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    code, line = start(
        service, *service_arguments(service, profile), "--etcd-endpoints", nobody, "--etcd-wait-s", "0.5"
    )
    assert code == 1
    assert line.startswith(f"wavepp.{service}: etcd")
    assert nobody in line


TAKEN = (
    ("router", "--bind-port"),
    ("router", "--metrics-port"),
    ("directory", "--bind-port"),
    ("directory", "--metrics-port"),
    ("stage", "--bind-port"),
    ("stage", "--metrics-port"),
    ("stage", "--link-port"),
)


@pytest.fixture(scope="module")
def refusals(profile: str, mesh: LocalCluster) -> Iterator[tuple[int, dict[tuple[str, str], tuple[int, str]]]]:
    """A port where somebody else listens, and how processes end that are to have it. They wait for it: all at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(len(TAKEN)) as threads:
        port = int(listener.getsockname()[1])

        def refused(case: tuple[str, str]) -> tuple[int, str]:
            service, flag = case
            stage = ("--stage", "1", "--stages", "2", "--model", profile, "--link", "socket")
            arguments = (*(stage if service == "stage" else ()), "--pipeline", "other", flag, str(port))
            return start(service, *arguments, "--etcd-endpoints", mesh.etcd_endpoints)

        yield port, dict(zip(TAKEN, threads.map(refused, TAKEN), strict=True))


@pytest.mark.parametrize(("service", "flag"), TAKEN)
def test_a_port_that_is_taken(
    refusals: tuple[int, dict[tuple[str, str], tuple[int, str]]], service: str, flag: str
) -> None:
    port, ends = refusals
    code, line = ends[service, flag]
    assert code == 1
    assert line.startswith(f"wavepp.{service}: cannot listen on 127.0.0.1:{port}: ")
    assert "in use" in line
    assert f"(process {os.getpid()}, " in line, "who has it"


def test_a_stage_that_runs_already(profile: str, mesh: LocalCluster) -> None:
    code, line = start(
        "stage", *service_arguments("stage", profile), "--blocks", "512", "--etcd-endpoints", mesh.etcd_endpoints
    )
    assert code == 1
    assert "stage 0 of pipeline p0 runs already at 127.0.0.1:" in line


def test_layers_that_do_not_follow_each_other(profile: str, mesh: LocalCluster) -> None:
    arguments = (*service_arguments("stage", profile), "--layers", "1,3")
    code, line = start("stage", *arguments, "--etcd-endpoints", mesh.etcd_endpoints)
    assert code == 1
    assert "stage 0 ends at layer 1, stage 1 begins at layer 2" in line


def test_another_model(tmp_path: Path, mesh: LocalCluster) -> None:
    other = write_profile(tmp_path / "other.json", {"hidden_bytes": 128})
    code, line = start("stage", *STAGE, "--model", other, "--etcd-endpoints", mesh.etcd_endpoints)
    assert code == 1
    assert "fingerprint" in line
    assert "stage 0" in line
    assert "stage 1" in line


def test_other_options(profile: str, mesh: LocalCluster) -> None:
    arguments = (*service_arguments("stage", profile), "--wave-tokens-max", "256")
    code, line = start("stage", *arguments, "--etcd-endpoints", mesh.etcd_endpoints)
    assert code == 1
    assert "stage 0 has wave_tokens_max 256, stage 1 has 512" in line


def test_another_number_of_stages(profile: str, mesh: LocalCluster) -> None:
    arguments = ("--stage", "0", "--stages", "3", "--model", profile)
    code, line = start("stage", *arguments, "--etcd-endpoints", mesh.etcd_endpoints)
    assert code == 1
    assert "stages 3" in line


@pytest.mark.parametrize("model", ["emulated:nowhere.json", "/nowhere/at/all"])
def test_a_model_that_is_not_there(model: str) -> None:
    code, line = start("stage", *STAGE, "--model", model)
    assert code == 1
    assert model.partition(":")[2] or model in line


def test_a_profile_that_is_none(tmp_path: Path) -> None:
    code, line = start("stage", *STAGE, "--model", write_profile(tmp_path / "bad.json", {"layers": 0}))
    assert code == 1
    assert "bad.json': model.layers: " in line


def test_a_profile_that_can_only_be_simulated() -> None:
    code, line = start("stage", *STAGE, "--model", "emulated:equal")
    assert code == 1
    assert line.startswith("wavepp.stage: profile 'equal' cannot be emulated")


def test_a_tokenizer_that_is_not_there(tmp_path: Path, mesh: LocalCluster) -> None:
    code, line = start("router", "--tokenizer", str(tmp_path), "--etcd-endpoints", mesh.etcd_endpoints)
    assert code == 1
    assert "tokenizer.json" in line


def test_settings_that_make_no_sense() -> None:
    code, line = start("stage", "--stage", "2", "--stages", "2", "--model", "emulated")
    assert code == 2
    assert "stage 2 of 2" in line


async def test_the_mesh_next_door_has_not_noticed(mesh: LocalCluster, client: MeshClient, profile: str) -> None:
    before = await client.status()
    code, _ = start("stage", *service_arguments("stage", profile), "--etcd-endpoints", mesh.etcd_endpoints)
    assert code == 1
    after = await client.status()
    assert [s.incarnation for s in before.stages] == [s.incarnation for s in after.stages]
    assert before.pipeline_epoch == after.pipeline_epoch
    await client.answer(range(77))
