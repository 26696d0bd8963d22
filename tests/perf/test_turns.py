"""Contenders by turns: each is at work alone, and none is left stopped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from perf.turns import Side, by_turns

COUNT = "import sys\nfor _ in range(int(sys.argv[1])): sum(range(20_000))"


@contextmanager
def counting(rounds: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that computes for a while, or until the test is over."""
    with subprocess.Popen([sys.executable, "-c", COUNT, str(rounds)]) as process:
        try:
            yield process
        finally:
            process.kill()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_both_get_their_work_done_and_the_longer_one_takes_more_turns() -> None:
    with counting(100) as short, counting(2000) as long:
        taken = by_turns([Side(short.wait, [short.pid]), Side(long.wait, [long.pid])], turn_s=0.05)
    assert (short.returncode, long.returncode) == (0, 0)
    assert taken[0] < taken[1]


def test_nobody_works_while_another_does() -> None:
    seen: list[str] = []
    with counting(10**9) as waits, counting(100) as works:

        def watch() -> None:
            works.wait()
            seen.append(state(waits.pid))
            waits.kill()

        by_turns([Side(watch, [works.pid]), Side(waits.wait, [waits.pid])], turn_s=60.0)
    assert seen == ["T"]


def test_a_failure_is_raised_and_leaves_no_process_stopped() -> None:
    def fail() -> None:
        raise RuntimeError("the work failed")

    with counting(10**9) as process:
        with pytest.raises(RuntimeError, match="the work failed"):
            by_turns([Side(fail, [process.pid])], turn_s=60.0)
        assert state(process.pid) != "T"
