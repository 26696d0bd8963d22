"""The frame around a process' main coroutine: event loop, signals, time limits, exit codes."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, NoReturn, TextIO, TypeVar

import uvloop

from wavepp.core.errors import WaveppError
from wavepp.infra.config import STOP_GRACE_S, ProcessConfig, load
from wavepp.infra.errors import BackgroundTaskError, StartupError
from wavepp.infra.logs import setup_logging

_log = logging.getLogger(__name__)

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
CANCEL_GRACE_S: Final = 5.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

Main = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""What a process does: it returns when it has shut down after the event it was given is set."""


C = TypeVar("C", bound=ProcessConfig)


def process_main(
    config_class: type[C], run: Callable[[C, asyncio.Event], Coroutine[Any, Any, None]], *, name: str
) -> NoReturn:
    """A process from its command line to its exit code: read the configuration, then `run` until a signal comes."""
    config = load(config_class, sys.argv[1:], name=name)
    setup_logging(config.log_level, config.log_format)
    code = run_process(partial(run, config), name=name, stop_grace_s=config.stop_grace_s)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # A thread in native code (a model that still loads, a step that hangs) must neither hold up the end nor crash it.
    os._exit(code)


def run_process(main: Main, *, name: str, stop_grace_s: float = STOP_GRACE_S) -> int:
    """Run `main(stop)` on uvloop and return the process' exit code.

    SIGTERM or SIGINT sets `stop`; `main` then has `stop_grace_s` to return before it is cancelled, and 5 s more before
    the process is ended with a dump of its threads. A second signal cancels at once. StartupError gives one log
    entry and code 1, any other error (also one of ours in a callback of the loop) a log entry and code 1. SIGUSR1
    dumps the stacks of all threads to stderr.
    """
    faulthandler.register(signal.SIGUSR1, file=_stderr(), all_threads=True)
    try:
        return uvloop.run(_supervise(main, name, stop_grace_s))
    except StartupError as error:
        _log.critical("%s: %s", name, one_line(error))
        return EXIT_FAILED
    finally:
        # Covers the end of the loop too: a thread of the default executor that hangs would keep it for ever.
        faulthandler.cancel_dump_traceback_later()
        faulthandler.unregister(signal.SIGUSR1)


def _stderr() -> TextIO:
    # The real one: what replaces sys.stderr (a test's capture) may have no file descriptor to write to in a crash.
    return sys.__stderr__ or sys.stderr


def one_line(error: BaseException) -> str:
    """The error's text without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


async def _supervise(main: Main, name: str, stop_grace_s: float) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    faults: list[WaveppError] = []

    def on_callback_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # What a timer or a callback raises reaches nobody else. If it is ours, the state behind it cannot be trusted.
        error = context.get("exception")
        _log.error("%s: %s", name, context.get("message"), exc_info=error)
        if isinstance(error, WaveppError):
            faults.append(error)
            stop.set()
            task.cancel()  # what it would let end in order cannot be trusted

    loop.set_exception_handler(on_callback_error)
    task = asyncio.ensure_future(main(stop))

    def limit_the_rest() -> None:
        # From the signal on the end is certain, even if the event loop itself hangs.
        faulthandler.dump_traceback_later(stop_grace_s + CANCEL_GRACE_S, exit=True, file=_stderr())

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            _log.warning("%s: second signal, stopping at once", name)
            task.cancel()
            return
        _log.info("%s: %s, stopping (at most %.0f s)", name, number.name, stop_grace_s)
        limit_the_rest()
        stop.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            limit_the_rest()  # whoever has set `stop`
            await asyncio.wait({task}, timeout=stop_grace_s)
        if not task.done():
            _log.error("%s: not stopped within %.0f s, cancelling: %s", name, stop_grace_s, _stack(task))
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_GRACE_S)
        return EXIT_FAILED if faults else _exit_code(task, name)
    finally:
        stopping.cancel()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _exit_code(task: asyncio.Future[None], name: str) -> int:
    if not task.done():
        return EXIT_FAILED
    if task.cancelled():
        return EXIT_FAILED
    error = task.exception()
    if error is None:
        return EXIT_OK
    if isinstance(error, StartupError):
        raise error
    if isinstance(error, BackgroundTaskError):
        _log.critical("%s: %s", name, error)  # logged with its stack when it happened
    else:
        _log.critical("%s: failed: %s", name, error, exc_info=error)
    return EXIT_FAILED


def _stack(task: asyncio.Future[None]) -> str:
    if not isinstance(task, asyncio.Task):
        return "unknown place"
    frames = task.get_stack(limit=4)
    return " <- ".join(f"{f.f_code.co_name} ({f.f_code.co_filename}:{f.f_lineno})" for f in reversed(frames))
