"""What a process says when it has started."""

from __future__ import annotations

import asyncio
import logging
import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from wavepp.directory.app import run_directory
from wavepp.directory.config import DirectoryConfig
from wavepp.infra.process import Main
from wavepp.router.app import run_router
from wavepp.router.config import RouterConfig

LIMIT_S = 30.0


def router(endpoint: str, run_dir: Path) -> Main:
    return partial(run_router, RouterConfig(etcd_endpoints=endpoint, cluster="words", run_dir=run_dir))  # type: ignore[arg-type]


def directory(endpoint: str, run_dir: Path) -> Main:
    return partial(run_directory, DirectoryConfig(etcd_endpoints=endpoint, cluster="words", run_dir=run_dir))  # type: ignore[arg-type]


@pytest.mark.parametrize("process", [router, directory])
async def test_the_log_says_where_the_metrics_are(
    process: Callable[[str, Path], Main], etcd_endpoint: str, tmp_path: Path
) -> None:
    stop = asyncio.Event()
    async with asyncio.timeout(LIMIT_S):
        with first_match(r"metrics port (\d+)") as said:
            running = asyncio.create_task(process(etcd_endpoint, tmp_path)(stop))
            await asyncio.wait((running, said), return_when=asyncio.FIRST_COMPLETED)
        assert said.done(), running
        text = await asyncio.to_thread(read, f"http://127.0.0.1:{said.result()}/metrics")
        stop.set()
        await running
    assert "wavepp_event_loop_lag_seconds" in text


@contextmanager
def first_match(pattern: str) -> Iterator[asyncio.Future[str]]:
    """What the first logged line that matches holds in its group."""
    loop = asyncio.get_running_loop()
    said: asyncio.Future[str] = loop.create_future()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if found := re.search(pattern, record.getMessage()):
                loop.call_soon_threadsafe(lambda: said.done() or said.set_result(found[1]))

    listener = Listener()
    root = logging.getLogger()
    level = root.level
    root.addHandler(listener)
    root.setLevel(logging.INFO)
    try:
        yield said
    finally:
        root.setLevel(level)
        root.removeHandler(listener)


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        return str(answer.read().decode())
