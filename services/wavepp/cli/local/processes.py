"""The processes of a local cluster: started with one configuration, watched, started again when they die."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from wavepp.core.errors import WaveppError

_log = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 35.0
"""Above the time that a router takes to drain."""
RESTARTS_MAX: Final = 5
RESTARTS_WINDOW_S: Final = 60.0
LAST_LINES: Final = 5
LOG_TAIL_BYTES: Final = 16_384


def too_often(started: list[float]) -> bool:
    """Whether something that was started at these times (monotonic seconds) dies too often to try again."""
    return sum(time.monotonic() - t < RESTARTS_WINDOW_S for t in started) > RESTARTS_MAX


class ProcessDiedError(WaveppError):
    """A process of the cluster ended by itself; the message has the end of its log."""


@dataclass(slots=True)
class ManagedProcess:
    """One `python -m wavepp.<service>`, its log file, and its restarts. `launcher`: a command that becomes it."""

    name: str
    module: str
    arguments: tuple[str, ...]
    log_file: Path
    launcher: tuple[str, ...] = ()
    child: subprocess.Popen[bytes] | None = None
    started: list[float] = field(default_factory=list)

    def start(self) -> None:
        """Spawn it; its output is appended to the log file."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            self.child = subprocess.Popen(
                [*self.launcher, sys.executable, "-m", self.module, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Its own group: Ctrl-C in the terminal reaches the supervisor only, which stops all in order.
                process_group=0,
            )
        self.started.append(time.monotonic())

    @property
    def running(self) -> bool:
        """Whether it lives."""
        return self.child is not None and self.child.poll() is None

    def check(self) -> None:
        """Raises ProcessDiedError, with the end of its log, if it has ended."""
        if self.child is not None and self.child.poll() is not None:
            raise ProcessDiedError(
                f"{self.name} ended with exit code {self.child.returncode}: {self.last_words()} (log: {self.log_file})"
            )

    def restart(self) -> None:
        """Start it again after it died; raises ProcessDiedError when it dies too often."""
        if too_often(self.started):
            self.check()
        _log.warning("%s died, starting it again", self.name)
        self.start()

    def last_words(self) -> str:
        """The line with which it refused to start, if it did that; else the last lines of its log."""
        try:
            with self.log_file.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
                lines = log.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            return "no log"
        if lines and (said := _startup_error(lines[-1], f"{self.module}: ")):
            return said
        return " | ".join(lines[-LAST_LINES:]) or "it said nothing"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it lives."""
        if self.child is not None and self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child.pid, number)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM, then SIGKILL when it does not end in time."""
        self.signal(signal.SIGTERM)
        self.wait_stopped(timeout_s)

    def wait_stopped(self, timeout_s: float) -> None:
        """Wait for its end; kill it when that takes too long."""
        if self.child is None:
            return
        try:
            self.child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _log.error("%s does not stop, killing it", self.name)
            self.child.kill()
            self.child.wait()


def _startup_error(line: str, begins: str) -> str:
    """What a line says with which a process refused to start; empty for any other line. In every format of logs."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        line = str(json.loads(line)["msg"])
    return line.partition(begins)[2]
