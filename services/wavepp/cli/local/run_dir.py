"""The directory of one `wavepp up`: one at a time may have it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from wavepp.cli.local.leftovers import end_leftovers
from wavepp.core.errors import WaveppError


class RunDirBusyError(WaveppError):
    """Another mesh runs there."""


@contextmanager
def own_run_dir(run_dir: Path, tell: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Create the directory and hold it; end what a supervisor that was killed there has left running.

    Raises RunDirBusyError when another one has it: a second mesh would delete the first one's data.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(run_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise WaveppError(f"cannot use run directory {run_dir}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
            raise RunDirBusyError(
                f"another mesh runs in {run_dir} (process {holder}): stop it, or give another --run-dir and --port"
            ) from error
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        if left := end_leftovers(run_dir):
            tell(f"ended what an earlier run had left running: {', '.join(left)}")
        yield
    finally:
        os.close(lock)
