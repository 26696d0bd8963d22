"""A step that never ends: the stage notices, says where it hangs, and makes room for another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from mesh_support import QUICK, eventually, open_client, running_mesh, write_profile
from wavepp.cli.local.cluster import ClusterSpec, LocalCluster
from wavepp.cli.local.processes import ManagedProcess
from wavepp.stage.watchdog import EXIT_HUNG

HANGS = 1001
"""A token that the model's second stage hangs at."""
DEATHS_MAX = 3


@pytest.fixture
def mesh_that_hangs(tmp_path: Path) -> Iterator[LocalCluster]:
    fault = {"token": HANGS, "stage": 1, "does": "hang"}
    spec = ClusterSpec(
        tmp_path,
        write_profile(tmp_path / "profile.json", {"faults": [fault]}),
        2,
        common_arguments=QUICK,
        stage_arguments=("--link", "socket", "--step-timeout-s", "3"),
    )
    with running_mesh(spec, quiet_logs=False) as cluster:
        yield cluster


async def until_ended(process: ManagedProcess) -> None:
    async def runs() -> bool:
        return process.running

    await eventually(runs, lambda found: not found, 30.0)
    assert process.child is not None
    assert process.child.returncode == EXIT_HUNG


async def test_a_stage_whose_step_hangs_dumps_its_stacks_leaves_and_is_replaced(mesh_that_hangs: LocalCluster) -> None:
    hung = mesh_that_hangs.stages[1]
    async with open_client(mesh_that_hangs.address) as client:
        before = await client.status()
        await asyncio.gather(*(client.answer(range(i, 400)) for i in range(8)))
        wedged = asyncio.ensure_future(client.prefill([HANGS, *range(300)], timeout=60))
        await until_ended(hung)
        wedged.cancel()
        log = hung.log_file.read_text()
        assert "this stage ends" in log
        assert "emulated.py" in log, "where it hangs"
        # Its place is free at once: no lease has to end first.
        await eventually(client.status, lambda s: [t.stage for t in s.stages] == [0], 2.0)
        hung.start()
        await client.answer(range(500, 900), 2)
        assert (await client.status()).pipeline_epoch > before.pipeline_epoch


@pytest.mark.long
async def test_a_request_that_hangs_each_new_process_fails_and_none_hangs_for_minutes(
    mesh_that_hangs: LocalCluster,
) -> None:
    hung = mesh_that_hangs.stages[1]
    async with open_client(mesh_that_hangs.address) as client:
        await asyncio.gather(*(client.answer(range(i, 400)) for i in range(8)))
        wedged = asyncio.ensure_future(client.prefill([HANGS, *range(300)], timeout=200))
        late = asyncio.ensure_future(client.answer(range(500, 900), 2, timeout=200))
        for _ in range(DEATHS_MAX):
            await until_ended(hung)
            hung.start()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await wedged
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        await late
