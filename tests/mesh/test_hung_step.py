"""A step that never ends: the stage notices, says where it hangs, and makes room for another."""

from __future__ import annotations

import asyncio
from pathlib import Path

from mesh_support import QUICK, eventually, open_client, running_mesh, write_profile
from wavepp.cli.local.cluster import ClusterSpec
from wavepp.stage.watchdog import EXIT_HUNG

HANGS = 31_999
"""A token that the model's second stage hangs at."""


async def test_a_stage_whose_step_hangs_dumps_its_stacks_leaves_and_is_replaced(tmp_path: Path) -> None:
    fault = {"token": HANGS, "stage": 1, "does": "hang"}
    spec = ClusterSpec(
        tmp_path,
        write_profile(tmp_path / "profile.json", {"faults": [fault]}),
        2,
        common_arguments=QUICK,
        stage_arguments=("--link", "socket"),
    )
    with running_mesh(spec, quiet_logs=False) as cluster:
        hung = cluster.stages[1]
        async with open_client(cluster.address) as client:
            before = await client.status()
            await asyncio.gather(*(client.answer(range(i, 400)) for i in range(8)))
            wedged = asyncio.ensure_future(client.prefill([HANGS, *range(300)], timeout=60))

            async def runs() -> bool:
                return hung.running

            await eventually(runs, lambda found: not found, 30.0)
            wedged.cancel()
            assert hung.child is not None
            assert hung.child.returncode == EXIT_HUNG
            log = hung.log_file.read_text()
            assert "this stage ends" in log
            assert "emulated.py" in log, "where it hangs"
            # Its place is free at once: no lease has to end first.
            await eventually(client.status, lambda s: [t.stage for t in s.stages] == [0], 2.0)
            hung.start()
            await client.answer(range(500, 900), 2)
            assert (await client.status()).pipeline_epoch > before.pipeline_epoch
