"""Processes that start in any order, and that are to stop before they have begun."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from perf.starts import Parts, answer, orders

from mesh_support import READY_S, eventually, write_profile

STOP_S = 2.0
LATE_S = 3.0
LONG_ORDERS = 10


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path, "socket")
    yield made
    made.stop()


@pytest.mark.parametrize(
    "order",
    [
        ("stage-1", "router", "stage-0", "directory", "etcd"),
        *(pytest.param(order, marks=pytest.mark.long) for order in orders(LONG_ORDERS, seed=1)),
    ],
    ids=" ".join,
)
async def test_a_cold_start_in_any_order_needs_no_restart(parts: Parts, order: tuple[str, ...]) -> None:
    for kind in order[:-1]:
        await parts.start(kind)
    if order[-1] == "etcd":
        for process in parts.processes.values():
            log = partial(asyncio.to_thread, process.log_file.read_text)
            await eventually(log, lambda found: "waiting for etcd" in found)
    else:
        # How late the last one is, and no waiting for something: the others do not say that they have nothing to do.
        await asyncio.sleep(LATE_S)
    await parts.start(order[-1])
    async with asyncio.timeout(READY_S):
        await answer(parts.address)
    assert not parts.ended()


@pytest.mark.parametrize("service", ["router", "directory", "stage"])
def test_a_process_that_waits_for_etcd_stops_at_once(service: str, tmp_path: Path) -> None:
    arguments = ("--stage", "0", "--stages", "2", "--model", write_profile(tmp_path / "p.json"))
    ended = terminated(
        service, "waiting for etcd", *(arguments if service == "stage" else ()), "--etcd-endpoints", "127.0.0.1:1"
    )
    assert ended == 0


@pytest.mark.parametrize(
    ("service", "setting"), [("router", "--bind-port"), ("directory", "--metrics-port"), ("stage", "--link-port")]
)
def test_a_port_that_a_predecessor_has_for_a_moment_longer_is_waited_for(
    service: str, setting: str, etcd_endpoint: str, tmp_path: Path
) -> None:
    arguments = ("--stage", "1", "--stages", "2", "--model", write_profile(tmp_path / "p.json"))
    with socket.create_server(("127.0.0.1", 0)) as predecessor:
        port = predecessor.getsockname()[1]
        command = [sys.executable, "-m", f"wavepp.{service}", setting, str(port), "--cluster", f"waits-{service}"]
        command += ["--etcd-endpoints", etcd_endpoint, *(arguments if service == "stage" else ())]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(json.loads(line))
                if "waiting for at most" in line:
                    predecessor.close()
                elif "metrics port" in line:
                    break
            process.terminate()
            process.communicate(timeout=10 * STOP_S)
    assert process.returncode == 0
    warnings = [each["msg"] for each in said if each["level"] == "warning"]
    assert len(warnings) == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use (process {os.getpid()}, " in warnings[0]


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
