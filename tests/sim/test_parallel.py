"""Runs in processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wavepp.core.errors import InvalidInputError, WaveppError
from wavepp.sim.parallel import run_all

PROGRAM = """
import os, signal, sys, time
from wavepp.sim.parallel import run_all

def run(number):
    print(os.getpid(), flush=True)
    if number == 0:
        {at_first}
    time.sleep(60)

try:
    run_all(run, [(number,) for number in range(4)], 1, lambda done, of: None)
except KeyboardInterrupt:
    print("interrupted")
"""


def program(at_first: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(at_first=at_first)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def half(number: int, of: str) -> str:
    if number % 2:
        raise InvalidInputError(f"{of} {number}")
    return f"{of} {number // 2}"


def die(number: int) -> int:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def fail_or_sleep(why: str) -> None:
    if why:
        raise InvalidInputError(why)
    time.sleep(60.0)


def late(number: int) -> int:
    """The first is the last to end: it waits for a file of the second one's."""
    path = Path(os.environ["LATE"])
    if number == 1:
        path.touch()
    else:
        deadline = time.monotonic() + 10.0
        while not path.exists():
            if time.monotonic() > deadline:
                raise TimeoutError("the second call does not run beside the first")
            time.sleep(0.01)
    return number


def test_a_result_is_at_the_place_of_its_call_whenever_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATE", str(tmp_path / "second"))
    assert run_all(late, [(0,), (1,)], 2, lambda done, of: None) == [0, 1]


def test_results_are_in_the_order_of_the_calls_and_progress_counts_up() -> None:
    seen: list[tuple[int, int]] = []
    results = run_all(half, [(number, "half") for number in range(8, -2, -2)], 2, lambda *done: seen.append(done))
    assert results == ["half 4", "half 3", "half 2", "half 1", "half 0"]
    assert seen == [(done, 5) for done in range(1, 6)]


def test_nothing_to_run_gives_nothing() -> None:
    assert run_all(half, [], 0, lambda done, of: None) == []


def test_an_error_in_a_process_is_raised_here() -> None:
    with pytest.raises(InvalidInputError, match="half 3"):
        run_all(half, [(2, "half"), (3, "half")], 1, lambda done, of: None)


def test_a_process_that_is_killed_is_an_error_of_ours() -> None:
    with pytest.raises(WaveppError, match="a process that simulated was killed"):
        run_all(die, [(0,), (1,), (2,)], 2, lambda done, of: None)


def test_an_error_ends_what_is_running_and_what_waits() -> None:
    seen: list[int] = []
    began = time.monotonic()
    with pytest.raises(InvalidInputError, match="early"):
        run_all(fail_or_sleep, [("early",), ("",), ("",), ("",)], 2, lambda done, of: seen.append(done))
    assert time.monotonic() - began < 30.0, "a sleep takes 60 s"
    assert not seen
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("whom", ["os.killpg(0, signal.SIGINT)", "os.kill(os.getppid(), signal.SIGINT)"])
def test_ctrl_c_ends_all_processes_at_once_and_only_the_parent_speaks(whom: str) -> None:
    with program(whom) as parent:
        said, wrong = parent.communicate(timeout=30)
    assert parent.returncode == 0
    worker, last = said.split()
    assert (last, wrong) == ("interrupted", "")
    assert not Path(f"/proc/{worker}").exists()


def test_processes_do_not_outlive_a_parent_that_is_killed() -> None:
    with program("os.kill(os.getppid(), signal.SIGKILL)") as parent:
        # Their end of the pipe closes when the last of them is gone.
        parent.communicate(timeout=30)
    assert parent.returncode == -signal.SIGKILL
