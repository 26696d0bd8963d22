"""Threads that encode text: few at once, and a long text never keeps short ones waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from wavepp.core.router.admission_queue import QueueFullError

P = ParamSpec("P")
T = TypeVar("T")

LONG_TEXT_BYTES: Final = 1 << 20
"""Encoding takes about 0.5 s for so much, and 500 MB of memory until it is done."""
SHORT_THREADS: Final = 2
WAITING_BYTES_MAX: Final = 256 << 20
"""Of text, encoded or waiting."""
RETRY_AFTER_MS: Final = 5000


class EncodingThreads:
    """Runs encoders, which are native code that releases the interpreter: long texts one after the other."""

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(SHORT_THREADS, thread_name_prefix="encode")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="encode-long")
        self._waiting_bytes = 0

    async def run(self, text_bytes: int, encode: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `encode` gives. Raises QueueFullError when too much text waits already, and what `encode` raises."""
        if self._waiting_bytes + text_bytes > WAITING_BYTES_MAX:
            raise QueueFullError(
                f"{self._waiting_bytes} bytes of text wait to be encoded, and {text_bytes} more exceed the limit of "
                f"{WAITING_BYTES_MAX}; try again later, or send token ids",
                RETRY_AFTER_MS,
            )
        threads = self._long if text_bytes > LONG_TEXT_BYTES else self._short
        work = threads.submit(encode, *args, **kwargs)
        self._waiting_bytes += text_bytes
        loop = asyncio.get_running_loop()
        # Whoever has given up leaves a text behind that is being encoded, and counts until that ends.
        work.add_done_callback(lambda _: loop.call_soon_threadsafe(self._done, text_bytes))
        return await asyncio.wrap_future(work)

    def _done(self, text_bytes: int) -> None:
        self._waiting_bytes -= text_bytes
