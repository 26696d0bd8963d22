"""The frame of a process: signals, time limits, exit codes, background tasks."""

from __future__ import annotations

import asyncio
import logging
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from wavepp.infra.config import ProcessConfig
from wavepp.infra.errors import BackgroundTaskError
from wavepp.infra.tasks import TaskOwner
from wavepp.router.config import RouterConfig

WAIT_S = 20.0
PRELUDE = """
import asyncio, sys, time
from wavepp.infra.process import run_process
from wavepp.infra.tasks import TaskOwner
from wavepp.infra.errors import StartupError
from wavepp.infra.logs import setup_logging
setup_logging("info", "console")
def ready(): print("ready", flush=True)
"""

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Run a program that ends in `sys.exit(run_process(...))`."""
    started: list[subprocess.Popen[str]] = []

    def run(body: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + body], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def await_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], WAIT_S)[0]
    assert process.stdout.readline() == "ready\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_gracefully_with_code_0(start: Start, number: signal.Signals) -> None:
    process = start("""
async def main(stop):
    ready()
    await stop.wait()
    print("cleaned up", flush=True)
sys.exit(run_process(main, name="wavepp test"))
""")
    await_ready(process)
    process.send_signal(number)
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (0, "cleaned up\n"), err


def test_startup_error_is_one_line_and_code_1(start: Start) -> None:
    process = start("""
async def main(stop):
    raise StartupError("port 1 is taken\\nby somebody")
sys.exit(run_process(main, name="wavepp test"))
""")
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert err.endswith(" CRITICAL wavepp.infra.process: wavepp test: port 1 is taken by somebody\n")
    assert err.count("\n") == 1


def test_a_router_has_the_time_of_its_drain_on_top_of_that_for_stopping() -> None:
    assert RouterConfig(drain_s=500.0).stop_grace_s == ProcessConfig().stop_grace_s + 500.0


def test_a_fault_of_ours_in_a_callback_ends_the_process_without_letting_anything_end_in_order(start: Start) -> None:
    process = start("""
from wavepp.core.errors import InvariantError
def fault():
    raise InvariantError("one and one are three")
async def main(stop):
    asyncio.get_running_loop().call_soon(fault)
    await stop.wait()
    await asyncio.Event().wait()
sys.exit(run_process(main, name="wavepp test", stop_grace_s=1000))
""")
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert "one and one are three" in err


def test_other_error_is_logged_with_its_stack_and_code_1(start: Start) -> None:
    process = start("""
async def main(stop):
    raise KeyError("boom")
sys.exit(run_process(main, name="wavepp test"))
""")
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert "CRITICAL wavepp.infra.process: wavepp test: failed: 'boom'" in err
    assert "Traceback" in err


def test_shutdown_that_hangs_is_cancelled_at_its_limit(start: Start) -> None:
    process = start("""
async def hang():
    await asyncio.Event().wait()
async def main(stop):
    ready()
    await stop.wait()
    try:
        await hang()
    finally:
        print("cancelled", flush=True)
sys.exit(run_process(main, name="wavepp test", stop_grace_s=0.2))
""")
    await_ready(process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (1, "cancelled\n")
    assert "not stopped within 0 s, cancelling" in err
    assert "main" in err


def test_second_signal_cancels_at_once(start: Start) -> None:
    process = start("""
async def main(stop):
    ready()
    await stop.wait()
    ready()
    await asyncio.Event().wait()
sys.exit(run_process(main, name="wavepp test", stop_grace_s=1000))
""")
    await_ready(process)
    process.send_signal(signal.SIGTERM)
    await_ready(process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 1


def test_event_loop_that_is_blocked_for_ever_is_ended_with_a_dump(start: Start) -> None:
    process = start("""
import wavepp.infra.process as p
p.CANCEL_GRACE_S = 0.2
async def main(stop):
    ready()
    await stop.wait()
    ready()
    time.sleep(1000)
sys.exit(run_process(main, name="wavepp test", stop_grace_s=0.2))
""")
    await_ready(process)
    process.send_signal(signal.SIGTERM)
    await_ready(process)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert "Timeout" in err
    assert "in main" in err


def test_sigusr1_dumps_stacks_and_the_process_goes_on(start: Start) -> None:
    process = start("""
async def main(stop):
    ready()
    await stop.wait()
sys.exit(run_process(main, name="wavepp test"))
""")
    await_ready(process)
    process.send_signal(signal.SIGUSR1)
    assert process.stderr is not None
    assert select.select([process.stderr], [], [], WAIT_S)[0]
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert "most recent call first" in err


def test_failed_background_task_brings_the_process_down(start: Start) -> None:
    process = start("""
async def fail():
    raise ValueError("lost my way")
async def main(stop):
    async with TaskOwner(stop) as tasks:
        tasks.spawn(fail(), "navigator")
        await stop.wait()
sys.exit(run_process(main, name="wavepp test"))
""")
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert "background task navigator failed, stopping: lost my way" in err
    assert err.count("Traceback") == 1


async def test_task_that_returns_is_fine_unless_it_was_to_run_for_ever() -> None:
    async def work() -> None:
        return

    stop = asyncio.Event()
    async with TaskOwner(stop) as tasks:
        await tasks.spawn(work(), "once")
    assert not stop.is_set()
    tasks = TaskOwner(stop)
    tasks.spawn(work(), "loop", endless=True)
    await asyncio.wait_for(stop.wait(), WAIT_S)
    with pytest.raises(BackgroundTaskError, match="loop failed: it ended"):
        await tasks.close()


async def test_close_cancels_and_waits_for_every_task() -> None:
    ended: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(number)

    stop = asyncio.Event()
    async with TaskOwner(stop) as tasks:
        for number in range(3):
            tasks.spawn(work(number), f"t{number}", endless=True)
        await asyncio.sleep(0)
    assert sorted(ended) == [0, 1, 2]
    assert not stop.is_set()
    with pytest.raises(BackgroundTaskError, match="owner closes"):
        tasks.spawn(work(9), "late")


async def test_task_that_will_not_end_is_named_within_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    tasks = TaskOwner(asyncio.Event())
    task = tasks.spawn(stubborn(), "stubborn")
    await asyncio.sleep(0)
    began = time.monotonic()
    with pytest.raises(BackgroundTaskError, match=r"within 0.05 s .* stubborn"):
        await tasks.close(timeout_s=0.05)
    assert time.monotonic() - began < 2
    release.set()
    await task


async def test_bodys_own_error_is_not_hidden_by_a_failed_task() -> None:
    async def fail() -> None:
        raise ValueError("task")

    async def body(stop: asyncio.Event) -> None:
        async with TaskOwner(stop) as tasks:
            tasks.spawn(fail(), "t")
            await asyncio.wait_for(stop.wait(), WAIT_S)
            raise KeyError("body")

    with pytest.raises(KeyError, match="body"):
        await body(asyncio.Event())


def test_an_error_of_ours_in_a_callback_of_the_loop_ends_the_process_with_code_1(start: Start) -> None:
    process = start("""
from wavepp.core.errors import InvariantError
async def main(stop):
    def fault():
        raise InvariantError("blocks do not add up")
    asyncio.get_running_loop().call_soon(fault)
    await stop.wait()
sys.exit(run_process(main, name="wavepp test"))
""")
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert "blocks do not add up" in err
