"""Runs in processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from wavepp.core.errors import InvalidInputError, WaveppError
from wavepp.sim.parallel import run_all

INTERRUPTED = """
import os, signal, sys, time
from wavepp.sim.parallel import run_all

def run(number):
    if number == 0:
        os.killpg(0, signal.SIGINT)
    time.sleep(60)

try:
    run_all(run, [(number,) for number in range(4)], 2, lambda done, of: None)
except KeyboardInterrupt:
    print("interrupted")
"""


def half(number: int, of: str) -> str:
    if number % 2:
        raise InvalidInputError(f"{of} {number}")
    return f"{of} {number // 2}"


def die(number: int) -> int:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


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


def test_ctrl_c_ends_all_processes_at_once_and_only_the_parent_speaks() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=30, start_new_session=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")
