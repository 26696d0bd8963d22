"""Who may encode text, and when."""

from __future__ import annotations

import asyncio
import threading

import pytest

from wavepp.core.router.admission_queue import QueueFullError
from wavepp.router.encoding_threads import LONG_TEXT_BYTES, SHORT_THREADS, WAITING_BYTES_MAX, EncodingThreads

LONG = LONG_TEXT_BYTES + 1
WITHIN_S = 10.0


class Slow:
    """An encoder that ends when it is let; counts how many run."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.began = threading.Semaphore(0)
        self.running = self.most = 0
        self._lock = threading.Lock()

    def __call__(self) -> str:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.began.release()
        assert self.go.wait(WITHIN_S)
        with self._lock:
            self.running -= 1
        return "encoded"


async def test_long_texts_go_one_by_one_and_short_ones_past_them() -> None:
    threads, slow = EncodingThreads(), Slow()
    long = [asyncio.ensure_future(threads.run(LONG, slow)) for _ in range(3)]
    assert await asyncio.to_thread(slow.began.acquire, timeout=WITHIN_S)
    async with asyncio.timeout(WITHIN_S):
        assert await threads.run(1000, lambda: "short") == "short"
    slow.go.set()
    assert await asyncio.gather(*long) == ["encoded"] * 3
    assert slow.most == 1


async def test_few_short_texts_are_encoded_at_once() -> None:
    threads, slow = EncodingThreads(), Slow()
    short = [asyncio.ensure_future(threads.run(1000, slow)) for _ in range(9)]
    for _ in range(SHORT_THREADS):
        assert await asyncio.to_thread(slow.began.acquire, timeout=WITHIN_S)
    slow.go.set()
    await asyncio.gather(*short)
    assert slow.most == SHORT_THREADS


async def test_text_that_waits_is_bounded_and_counts_until_it_is_done() -> None:
    threads, slow = EncodingThreads(), Slow()
    first = asyncio.ensure_future(threads.run(WAITING_BYTES_MAX - LONG, slow))
    assert await asyncio.to_thread(slow.began.acquire, timeout=WITHIN_S)
    waiting = asyncio.ensure_future(threads.run(LONG, slow))
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError, match="try again later") as refused:
        await threads.run(1, slow)
    assert refused.value.retry_after_ms > 0
    first.cancel()
    waiting.cancel()
    await asyncio.wait({first, waiting})
    with pytest.raises(QueueFullError):  # the first is still being encoded, whoever waits for it
        await threads.run(2 * LONG, slow)
    slow.go.set()
    # By the time that another long text is through, so is the first.
    assert await threads.run(LONG, slow) == "encoded"
    assert await threads.run(WAITING_BYTES_MAX, slow) == "encoded"


async def test_an_encoder_that_fails_says_so_and_leaves_nothing() -> None:
    threads = EncodingThreads()

    def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await threads.run(1000, fail)
    assert await threads.run(WAITING_BYTES_MAX, lambda: "encoded") == "encoded"
