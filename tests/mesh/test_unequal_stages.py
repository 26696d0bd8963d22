"""One stage has half the room of the others: everybody is served, in order, and told who made them wait."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest

from mesh_support import (
    BLOCK,
    QUICK,
    VOCAB,
    MeshClient,
    eventually,
    open_client,
    running_mesh,
    write_profile,
)
from wavepp.cli.local.cluster import ClusterSpec, LocalCluster
from wavepp.v1 import prefill_pb2

BLOCKS = (256, 128, 256)
SMALL = 1
PROMPT_TOKENS = 1024
OFFERED = 2 * BLOCKS[SMALL] * BLOCK // PROMPT_TOKENS


@pytest.fixture(scope="module")
def unequal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three stages; the one in the middle holds 8,192 tokens, half of what the others hold."""
    run_dir = tmp_path_factory.mktemp("unequal")
    # 0.1 s a prompt: all of them are there before the first is done.
    model = write_profile(run_dir / "profile.json", {"layers": 3}, measured_stages=3, token_us=100.0)
    spec = ClusterSpec(
        run_dir,
        model,
        len(BLOCKS),
        common_arguments=QUICK,
        stage_arguments=("--link", "socket", "--validate-invariants"),
        per_stage={i: ("--blocks", str(blocks)) for i, blocks in enumerate(BLOCKS)},
    )
    with running_mesh(spec, quiet_logs=True) as cluster:
        yield cluster


@pytest.fixture
async def client(unequal: LocalCluster) -> AsyncIterator[MeshClient]:
    async with open_client(unequal.address) as found:
        yield found


async def arrived(client: MeshClient, count: int) -> None:
    """Return when the router has taken in so many requests."""

    def seen(status: prefill_pb2.GetStatusResponse) -> bool:
        router = status.router
        return router.queued + router.admitting + router.running + router.requests_done >= count

    await eventually(client.status, seen, 5.0)


async def test_twice_what_the_smallest_pool_holds_is_served_in_order(client: MeshClient) -> None:
    rng = random.Random(1)
    prompts = [[rng.randrange(VOCAB) for _ in range(PROMPT_TOKENS)] for _ in range(OFFERED)]
    too_large = list(range(BLOCKS[SMALL] * BLOCK + 2))
    tasks: list[asyncio.Task[prefill_pb2.PrefillResponse]] = []
    refused: list[grpc.aio.UnaryUnaryCall] = []
    for i, prompt in enumerate(prompts):
        tasks.append(asyncio.create_task(client.answer(prompt, request_id=f"r{i:02}", timeout=60)))
        await arrived(client, i + 1)
        if i % 5 == 0:
            refused.append(client.prefill(too_large))
    answers = await asyncio.gather(*tasks)

    for call in refused:
        assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert f"stage {SMALL} has {BLOCKS[SMALL]} in all" in await call.details()
    chunks = itertools.chain.from_iterable(wave.chunks for wave in await client.timeline())
    begun = list(dict.fromkeys(chunk.request_id for chunk in chunks))
    assert begun == [f"r{i:02}" for i in range(OFFERED)], "first come, first served"
    waited = [a.reuse for a in answers if a.reuse.waits]
    assert len(waited) >= OFFERED // 4, "offered was more than fits, yet hardly anybody waited"
    assert {(reuse.waited_for_stage, reuse.waited_for_pool) for reuse in waited} == {(SMALL, "kv")}
    assert all(reuse.HasField("waited_for_stage") for reuse in waited)
    assert not answers[0].reuse.waits
    await client.quiet()


async def test_the_stage_that_has_forgotten_a_prefix_is_named(client: MeshClient) -> None:
    rng = random.Random(2)
    prompts = [[rng.randrange(VOCAB) for _ in range(PROMPT_TOKENS)] for _ in range(OFFERED // 2 + 4)]
    for prompt in prompts:
        await client.answer(prompt)
    again = await client.answer(prompts[0])
    # The others still hold it; the endpoint is what all three can serve.
    assert again.reuse.longest_any_tokens == PROMPT_TOKENS
    assert again.reuse.endpoint_tokens == again.cached_tokens < PROMPT_TOKENS - BLOCK
    assert again.reuse.HasField("limiting_stage")
    assert again.reuse.limiting_stage == SMALL
    latest = await client.answer(prompts[-1])
    assert latest.cached_tokens == PROMPT_TOKENS - BLOCK
    assert not latest.reuse.HasField("limiting_stage")
    await client.quiet()
