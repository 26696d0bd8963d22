"""What a supervisor that was killed left running, found and ended by the next one in the same run directory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_FILE: Final = "processes.json"
TERM_GRACE_S: Final = 10.0
_POLL_S: Final = 0.05


def note_processes(run_dir: Path, pids: Mapping[str, int]) -> None:
    """Write down what runs, by name. With the moment of its start a process is not mistaken for another that later got
    its number."""
    noted = {name: {"pid": pid, "started": _started(pid)} for name, pid in pids.items()}
    new = run_dir / f"{_FILE}.new"
    new.write_text(json.dumps(noted) + "\n")
    new.rename(run_dir / _FILE)


def forget_processes(run_dir: Path) -> None:
    """All of them have ended."""
    (run_dir / _FILE).unlink(missing_ok=True)


def end_leftovers(run_dir: Path) -> list[str]:
    """End what is noted there and still runs; the names. The caller holds the run directory."""
    left = {name: pid for name, (pid, started) in _noted(run_dir).items() if _started(pid) == started}
    found = list(left)
    for number, grace_s in ((signal.SIGTERM, TERM_GRACE_S), (signal.SIGKILL, TERM_GRACE_S)):
        moments = {pid: _started(pid) for pid in left.values()}
        for pid in left.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        ends = time.monotonic() + grace_s
        while left and time.monotonic() < ends:
            left = {name: pid for name, pid in left.items() if _started(pid) == moments[pid] is not None}
            time.sleep(_POLL_S if left else 0)
    forget_processes(run_dir)
    return found


def _noted(run_dir: Path) -> dict[str, tuple[int, int]]:
    try:
        noted = json.loads((run_dir / _FILE).read_text())
        return {str(name): (int(each["pid"]), int(each["started"])) for name, each in noted.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _started(pid: int) -> int | None:
    """When the process began, in clock ticks since boot; None when there is none (any more), or it only waits to be
    reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None
