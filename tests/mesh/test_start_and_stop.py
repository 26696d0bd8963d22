"""Processes that start in any order, and that are to stop before they have begun."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from mesh_support import QUICK, eventually, open_client, write_profile
from wavepp.cli.local.cluster import free_port
from wavepp.cli.local.processes import ManagedProcess
from wavepp.infra.etcd.server import EtcdServer

STOP_S = 2.0
LATE_S = 3.0


class Parts:
    """The five kinds of process of one mesh, each started when it is asked for."""

    def __init__(self, run_dir: Path) -> None:
        self.etcd = EtcdServer(run_dir / "etcd", run_dir / "etcd.log", fsync=False)
        # So that its port is known before the others start, and stays.
        self.etcd.start()
        self.etcd.stop()
        self.router_port = free_port()
        model = write_profile(run_dir / "profile.json")
        common = ("--etcd-endpoints", self.etcd.endpoint, *QUICK)
        stage = (*common, "--stages", "2", "--model", model, "--link", "socket")
        self.processes = {
            "directory": ManagedProcess("directory", "wavepp.directory", common, run_dir / "directory.log"),
            "router": ManagedProcess(
                "router", "wavepp.router", (*common, "--bind-port", str(self.router_port)), run_dir / "router.log"
            ),
            "stage-0": ManagedProcess("stage-0", "wavepp.stage", (*stage, "--stage", "0"), run_dir / "stage-0.log"),
            "stage-1": ManagedProcess("stage-1", "wavepp.stage", (*stage, "--stage", "1"), run_dir / "stage-1.log"),
        }

    def start(self, kind: str) -> None:
        if kind == "etcd":
            self.etcd.start()
        else:
            self.processes[kind].start()

    def stop(self) -> None:
        for process in self.processes.values():
            process.stop()
        self.etcd.stop()


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path)
    yield made
    made.stop()


@pytest.mark.parametrize(
    "order",
    [
        ("stage-1", "router", "stage-0", "directory", "etcd"),
        pytest.param(("router", "directory", "etcd", "stage-1", "stage-0"), marks=pytest.mark.long),
        pytest.param(("directory", "stage-0", "etcd", "stage-1", "router"), marks=pytest.mark.long),
        pytest.param(("etcd", "stage-0", "stage-1", "router", "directory"), marks=pytest.mark.long),
        pytest.param(("stage-0", "etcd", "router", "directory", "stage-1"), marks=pytest.mark.long),
    ],
    ids=lambda order: f"{order[-1]} last",
)
async def test_a_cold_start_in_any_order_needs_no_restart(parts: Parts, order: tuple[str, ...]) -> None:
    for kind in order[:-1]:
        await asyncio.to_thread(parts.start, kind)
    if order[-1] == "etcd":
        for process in parts.processes.values():
            log = partial(asyncio.to_thread, process.log_file.read_text)
            await eventually(log, lambda found: "waiting for etcd" in found)
    else:
        # How late the last one is, and no waiting for something: the others do not say that they have nothing to do.
        await asyncio.sleep(LATE_S)
    await asyncio.to_thread(parts.start, order[-1])
    async with open_client(f"127.0.0.1:{parts.router_port}") as client:
        await client.ready()
        await client.answer(range(200), 2)
    assert all(len(process.started) == 1 and process.running for process in parts.processes.values())


@pytest.mark.parametrize("service", ["router", "directory", "stage"])
def test_a_process_that_waits_for_etcd_stops_at_once(service: str, tmp_path: Path) -> None:
    arguments = ("--stage", "0", "--stages", "2", "--model", write_profile(tmp_path / "p.json"))
    ended = terminated(
        service, "waiting for etcd", *(arguments if service == "stage" else ()), "--etcd-endpoints", "127.0.0.1:1"
    )
    assert ended == 0


def terminated(service: str, words: str, *arguments: str) -> int:
    """Exit code of a process that gets SIGTERM when its log has these words."""
    command = [sys.executable, "-m", f"wavepp.{service}", *arguments]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if words in line:
                break
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        process.communicate(timeout=10 * STOP_S)
        assert time.monotonic() - began < STOP_S
        return process.returncode


def test_a_process_that_is_terminated_while_it_is_imported_ends_with_code_0() -> None:
    """As the first process of a container it would ignore the signal without a handler."""
    for service in ("router", "directory", "stage"):
        body = f"""
import runpy, signal, sys
sys.argv = ["x"]
real = signal.signal
def seen(number, handler):
    found = real(number, handler)
    signal.raise_signal(number)
    return found
signal.signal = seen
runpy.run_module("wavepp.{service}", run_name="__main__")
"""
        ended = subprocess.run([sys.executable, "-c", body], capture_output=True, timeout=30, check=False, text=True)
        assert (ended.returncode, ended.stderr) == (0, "")
