"""Ownership of background tasks: none is forgotten, and none fails unseen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, Self

from wavepp.infra.errors import BackgroundTaskError

_log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 10.0


class TaskOwner:
    """Owns the background tasks of a process (or of a part of it).

    A task that fails is logged at once and sets `stop`, the event on which the process shuts down; `close` then raises
    BackgroundTaskError, so that the process ends with exit code 1. Use as `async with TaskOwner(stop) as tasks`.
    """

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop
        self._tasks: set[asyncio.Task[Any]] = set()
        self._endless: set[asyncio.Task[Any]] = set()
        self._failure: tuple[str, BaseException | None] | None = None
        self._closing = False

    @property
    def failed(self) -> bool:
        """Whether a task has failed: what it kept up to date cannot be trusted any more."""
        return self._failure is not None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        try:
            await self.close()
        except BackgroundTaskError:
            # The body's own error tells more, and was first.
            if error is None or isinstance(error, asyncio.CancelledError):
                raise

    def spawn(self, work: Coroutine[Any, Any, Any], name: str, *, endless: bool = False) -> asyncio.Task[Any]:
        """Run `work` in the background. With `endless`, returning counts as a failure too."""
        if self._closing:
            work.close()
            raise BackgroundTaskError(f"task {name} was to be started while its owner closes")
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        if endless:
            self._endless.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Cancel every task and wait for its end. Raises BackgroundTaskError if one had failed, or will not end."""
        self._closing = True
        pending = set(self._tasks)
        for task in pending:
            task.cancel()
        if pending:
            _, stuck = await asyncio.wait(pending, timeout=timeout_s)
            if stuck:
                names = ", ".join(sorted(task.get_name() for task in stuck))
                raise BackgroundTaskError(f"tasks did not end within {timeout_s} s after they were cancelled: {names}")
        if self._failure is not None:
            name, cause = self._failure
            raise BackgroundTaskError(f"task {name} failed: {cause or 'it ended'}") from cause

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        endless = task in self._endless
        self._endless.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None and (self._closing or task.cancelled() or not endless):
            return
        name = task.get_name()
        _log.critical("background task %s failed, stopping: %s", name, error or "it ended", exc_info=error)
        if self._failure is None:
            self._failure = (name, error)
        self._stop.set()
