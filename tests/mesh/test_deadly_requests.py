"""Requests whose steps raise, or end their stage: they fail, and those that run beside them get their answers."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest

from mesh_support import QUICK, VOCAB, MeshClient, open_client, running_mesh, write_profile
from wavepp.cli.local.cluster import ClusterSpec, LocalCluster

RAISES, EXITS = 1001, 1002
"""No answer has them: the model that is emulated likes other tokens."""

INNOCENTS = 6
DEATHS_MAX = 3


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three stages, of which the middle one has faults."""
    run_dir = tmp_path_factory.mktemp("faulty")
    faults = [{"token": RAISES, "stage": 1, "does": "raise"}, {"token": EXITS, "stage": 1, "does": "exit"}]
    model = write_profile(run_dir / "profile.json", {"faults": faults}, launch_ms=5.0)
    spec = ClusterSpec(
        run_dir,
        model,
        3,
        common_arguments=QUICK,
        stage_arguments=("--link", "socket", "--validate-invariants"),
        router_arguments=("--policy", "static"),
    )
    with running_mesh(spec, quiet_logs=False) as cluster:
        yield cluster


@pytest.fixture
async def client(faulty: LocalCluster) -> AsyncIterator[MeshClient]:
    """Every test begins and ends with a mesh that serves and holds nothing."""
    async with open_client(faulty.address) as found:
        await found.ready()
        yield found
        await found.ready()
        await found.quiet(within_s=10.0)


def prompts(seed: int, bad_token: int) -> list[list[int]]:
    """Short ones, so that many share a wave; the one in the middle has the token."""
    rng = random.Random(seed)
    made = [[rng.randrange(2000, VOCAB) for _ in range(50)] for _ in range(INNOCENTS + 1)]
    made[INNOCENTS // 2][20] = bad_token
    return made


async def answers_of_the_innocent(client: MeshClient, asked: list[list[int]]) -> tuple[list[int], grpc.aio.AioRpcError]:
    """How often each of them was tried, and what became of the other one."""
    calls = [asyncio.create_task(client.answer(prompt, 12, timeout=60)) for prompt in asked]
    bad = calls.pop(INNOCENTS // 2)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bad
    return [answer.attempts for answer in await asyncio.gather(*calls)], caught.value


async def test_a_request_whose_step_raises_fails_and_the_others_of_its_wave_notice_nothing(client: MeshClient) -> None:
    before = await client.status()
    attempts, error = await answers_of_the_innocent(client, prompts(1, RAISES))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "stage 1: RuntimeError: the profile's fault" in (error.details() or "")
    assert attempts == [1] * INNOCENTS
    assert (await client.status()).pipeline_epoch == before.pipeline_epoch


async def test_a_request_that_a_stage_dies_of_fails_after_three_deaths_and_the_others_are_answered(
    faulty: LocalCluster, client: MeshClient
) -> None:
    done = threading.Event()
    died: list[str] = []
    supervisor = asyncio.create_task(asyncio.to_thread(faulty.supervise, done.wait, died.append))
    try:
        _, error = await answers_of_the_innocent(client, prompts(2, EXITS))
    finally:
        done.set()
        await supervisor
    assert error.code() is grpc.StatusCode.INTERNAL, "a client must not try it again"
    assert "stage 1 ended while it ran this request" in (error.details() or "")
    assert set(died) == {"stage-1"}
    assert len(died) <= DEATHS_MAX
