"""What the measurements ran on, and who else used it meanwhile."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import psutil

LIBRARIES: Final = ("torch", "transformers", "grpcio", "uvloop")
NOT_BUSY: Final = ("idle", "iowait", "guest", "guest_nice")
"""Fields of psutil.cpu_times that are no work, or are counted in another field already."""


@dataclass(frozen=True, slots=True)
class Load:
    """Cores in use on average: by this program and the processes that it started, and by all others (a hypervisor's
    stolen time among them)."""

    seconds: float
    own_cores: float
    other_cores: float

    def json(self) -> dict[str, float]:
        """For the results file."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.own_cores:.2f} cores in use by this program, {self.other_cores:.2f} by others"


class LoadWatch:
    """Watches from its making on. Processes that began and ended in between count if their parent still lives."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._busy, self._own = _busy_s(), _own_s()

    def load(self) -> Load:
        """Since the watch was made."""
        seconds = max(1e-9, time.monotonic() - self._began)
        own = max(0.0, _own_s() - self._own) / seconds
        busy = max(0.0, _busy_s() - self._busy) / seconds
        return Load(seconds, own, max(0.0, busy - own))


def cpu_s(pid: int) -> float:
    """User and system time of a process so far, in seconds."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def describe() -> dict[str, str | int]:
    """The machine and the libraries that matter."""
    versions = {name: _version(name) for name in LIBRARIES}
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": platform.platform(),
        "python": platform.python_version(),
        **versions,
    }


def _busy_s() -> float:
    times = psutil.cpu_times()._asdict()
    return float(sum(seconds for name, seconds in times.items() if name not in NOT_BUSY))


def _own_s() -> float:
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "not installed"
