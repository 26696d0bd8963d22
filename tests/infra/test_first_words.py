"""What a process says when it has started."""

from __future__ import annotations

import asyncio
import logging
import re
import urllib.request
from collections.abc import Callable
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
    process: Callable[[str, Path], Main], etcd_endpoint: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    stop = asyncio.Event()
    async with asyncio.timeout(LIMIT_S):
        running = asyncio.create_task(process(etcd_endpoint, tmp_path)(stop))
        while (found := re.search(r"metrics port (\d+)", caplog.text)) is None:
            assert not running.done(), running
            await asyncio.sleep(0.02)
        text = await asyncio.to_thread(read, f"http://127.0.0.1:{found[1]}/metrics")
        stop.set()
        await running
    assert "wavepp_event_loop_lag_seconds" in text


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        return str(answer.read().decode())
