"""Mixed work with cancels: every answer is the right one, and afterwards nobody holds anything."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from mesh_support import BLOCK, VOCAB, MeshClient, check_answer
from wavepp.cli.local.cluster import LocalCluster
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.keys import PipelineKeys
from wavepp.v1 import prefill_pb2

REQUESTS = 300
CONCURRENT = 24
CANCELLED = 0.15


@dataclass(frozen=True, slots=True)
class Work:
    prompt: tuple[int, ...]
    salt: str
    max_tokens: int
    cancel_after_s: float | None


def mixed_work(rng: random.Random) -> list[Work]:
    """A quarter of the tokens come from three stems."""
    stems = [random_tokens(rng, 640) for _ in range(3)]
    work = []
    for _ in range(REQUESTS):
        shared = rng.choice(stems)[: rng.randrange(640)]
        prompt = shared + random_tokens(rng, 1 + rng.randrange(1920))
        cancel = rng.random() * 0.15 if rng.random() < CANCELLED else None
        work.append(Work(prompt, rng.choice("ab"), rng.choice((1, 1, 1, 2, 5)), cancel))
    return work


def random_tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(VOCAB) for _ in range(count))


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    length = min(len(one), len(other))
    return next((i for i in range(length) if one[i] != other[i]), length)


async def run_one(client: MeshClient, work: Work, gate: asyncio.Semaphore) -> prefill_pb2.PrefillResponse | None:
    async with gate:
        call = client.prefill(work.prompt, max_tokens=work.max_tokens, cache_salt=work.salt)
        if work.cancel_after_s is not None:
            asyncio.get_running_loop().call_later(work.cancel_after_s, call.cancel)
        try:
            response: prefill_pb2.PrefillResponse = await call
        except asyncio.CancelledError:
            assert call.cancelled()
            assert work.cancel_after_s is not None
            return None
    check_answer(response, work.prompt, work.max_tokens)
    return response


async def test_mixed_work_with_cancels_leaves_nothing_behind(mesh: LocalCluster, client: MeshClient) -> None:
    work = mixed_work(random.Random(2))
    gate = asyncio.Semaphore(CONCURRENT)
    answers = await asyncio.gather(*(run_one(client, w, gate) for w in work))
    status = await client.quiet(within_s=2.0)

    async with EtcdClient([mesh.etcd_endpoints]) as etcd:
        assert not (await etcd.get_prefix(PipelineKeys("default", "p0").grants)).items
    assert {p.capacity for s in status.stages for p in s.pools} == {512}
    answered = [(w, a) for w, a in zip(work, answers, strict=True) if a is not None]
    assert len(answered) > REQUESTS * (1 - 2 * CANCELLED)
    assert any(a is None for a in answers)
    assert sum(a.cached_tokens > 0 for _, a in answered) > REQUESTS / 10
    for one, answer in answered:
        same_salt = [w.prompt for w in work if w.salt == one.salt and w is not one]
        longest = max(common_prefix(one.prompt, prompt) for prompt in same_salt)
        assert answer.cached_tokens <= longest, "more was reused than this tenant has ever sent"


async def test_tenants_share_nothing_whatever_the_order(client: MeshClient) -> None:
    prompt = random_tokens(random.Random(3), 10 * BLOCK + 7)
    for salt in ({"cache_salt": "one"}, {"cache_salt": "two"}, {"cache_salt": ""}, {}):
        first = await client.answer(prompt, 2, **salt)
        again = await client.answer(prompt, 2, **salt)
        assert first.cached_tokens == 0, f"{salt} reused what another tenant computed"
        assert again.cached_tokens == 10 * BLOCK
        assert again.token_ids == first.token_ids
    await client.quiet()


async def test_streams_that_nobody_reads_to_the_end_leave_nothing_behind(client: MeshClient) -> None:
    rng = random.Random(4)

    async def read_two(prompt: Sequence[int]) -> None:
        call = client.stream(prompt, max_tokens=500)
        indices = [(await call.read()).token.index for _ in range(2)]
        assert indices == [0, 1]
        call.cancel()

    await asyncio.gather(*(read_two(random_tokens(rng, 300)) for _ in range(20)))
    await client.quiet()


async def test_a_client_that_loses_its_connection_leaves_nothing_behind(mesh: LocalCluster, client: MeshClient) -> None:
    rng = random.Random(5)
    channel = grpc.aio.insecure_channel(mesh.address, options=(("grpc.use_local_subchannel_pool", 1),))
    other = MeshClient(channel)
    calls = [other.stream(random_tokens(rng, 500), max_tokens=1000) for _ in range(10)]
    for call in calls:
        assert (await call.read()).token.index == 0
    await channel.close()
    await client.quiet()


async def test_prompts_that_end_at_a_block_leave_at_least_one_token_to_compute(client: MeshClient) -> None:
    prompt = random_tokens(random.Random(6), 4 * BLOCK)
    for length in (BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1, 1):
        for max_tokens in (1, 2):
            for _ in range(2):
                response = await client.answer(prompt[:length], max_tokens, cache_salt="edges")
                assert response.computed_tokens >= 1
            assert response.cached_tokens == (length - 1) // BLOCK * BLOCK
    await client.quiet()


async def test_what_was_generated_is_reused_by_the_next_turn(client: MeshClient) -> None:
    prompt = random_tokens(random.Random(7), BLOCK + 10)
    first = await client.answer(prompt, 2 * BLOCK, cache_salt="turns")
    turn = (*prompt, *first.token_ids, *range(20))
    second = await client.answer(turn, 2, cache_salt="turns")
    # All but the last token of the answer have a cache entry: 74 + 127 tokens, 3 full blocks.
    assert second.cached_tokens == 3 * BLOCK


async def test_a_storm_of_cancels_leaves_nothing_behind(client: MeshClient) -> None:
    rng = random.Random(8)
    calls = []
    for _ in range(200):
        call = client.prefill(random_tokens(rng, rng.randrange(1, 3000)), max_tokens=rng.choice((1, 50)))
        asyncio.get_running_loop().call_later(rng.random() * 0.3, call.cancel)
        calls.append(call)
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(e, asyncio.CancelledError) for e in ended) > 20
    await client.quiet()
    await client.answer(random_tokens(rng, 100))
