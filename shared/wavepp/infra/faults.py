"""One rule for faults of our own: the process ends, because its state cannot be trusted any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from wavepp.core.errors import InvariantError


@contextmanager
def fatal_faults(where: str) -> Iterator[None]:
    """Around every step of a state machine: an InvariantError stops the process, wherever it is raised.

    Without it the fault would end whatever stream or link brought the event, and the process would go on serving.
    It is raised on as well, so that nothing more is done with the event.
    """
    try:
        yield
    except InvariantError as error:
        # The handler that `run_process` installs logs it and stops the process with exit code 1.
        asyncio.get_running_loop().call_exception_handler({"message": f"fault in {where}", "exception": error})
        raise
