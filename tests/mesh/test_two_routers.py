"""Two routers and two directories: one of each leads, and clients of either notice nothing when another one does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest

from etcd_support import frozen
from mesh_support import (
    QUICK,
    SERVING,
    VOCAB,
    MeshClient,
    check_answer,
    eventually,
    open_client,
    running_mesh,
    write_profile,
)
from wavepp.cli.local.cluster import ClusterSpec, LocalCluster
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.keys import PipelineKeys
from wavepp.infra.leader import Leader
from wavepp.v1 import prefill_pb2

KEYS = PipelineKeys("default", "p0")
PROMPT = [7 * i % VOCAB for i in range(300)]
AT_ONCE_S = 4.0
"""Well below the lease of 5 s with its renewals, far above what a takeover takes."""
RETRIES = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 5,
                    "initialBackoff": "0.2s",
                    "maxBackoff": "2s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
)
"""gRPC's standard retry policy, as a client sets it."""


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two stages whose steps take 10 ms."""
    run_dir = tmp_path_factory.mktemp("doubled")
    spec = ClusterSpec(
        run_dir,
        write_profile(run_dir / "profile.json", launch_ms=10.0),
        2,
        routers=2,
        directories=2,
        common_arguments=QUICK,
        stage_arguments=("--validate-invariants", "--link", "socket"),
    )
    with running_mesh(spec, quiet_logs=False) as cluster:
        yield cluster


class Pair:
    """The two routers as clients see them; `leader` and `standby` are indices, of now."""

    def __init__(self, cluster: LocalCluster, clients: list[MeshClient], etcd: EtcdClient) -> None:
        self.cluster, self.clients, self.etcd = cluster, clients, etcd
        self.leader = self.standby = -1

    async def settle(self) -> None:
        """Return when both are ready."""
        for process in (*self.cluster.routers, *self.cluster.directories):
            if not process.running:
                process.start()
        for client in self.clients:
            await client.ready()
        self.leader = await self._leading()
        self.standby = 1 - self.leader

    async def led_by(self, index: int, within_s: float = 20.0) -> float:
        """Seconds until that router leads."""
        began = time.monotonic()
        await eventually(self._leading, lambda found: found == index, within_s)
        return time.monotonic() - began

    async def _leading(self) -> int:
        held = await self.etcd.get(KEYS.router)
        if held is None:
            return -1
        return self.cluster.addresses.index(Leader.decode(held.value).address)

    @property
    def leading(self) -> MeshClient:
        return self.clients[self.leader]

    @property
    def standing_by(self) -> MeshClient:
        return self.clients[self.standby]

    def pid(self, index: int) -> int:
        child = self.cluster.routers[index].child
        assert child is not None
        return child.pid

    def kill(self, index: int) -> None:
        self.cluster.routers[index].signal(signal.SIGKILL)
        self.cluster.routers[index].wait_stopped(5.0)


@pytest.fixture
async def pair(doubled: LocalCluster) -> AsyncIterator[Pair]:
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(open_client(address)) for address in doubled.addresses]
        etcd = await stack.enter_async_context(EtcdClient([doubled.etcd_endpoints]))
        found = Pair(doubled, clients, etcd)
        await found.settle()
        yield found
        await found.settle()
        await found.leading.quiet(10.0)


class Reader:
    """A stream that is read as it comes."""

    def __init__(self, client: MeshClient, prompt: list[int], max_tokens: int, **fields: Any) -> None:
        self.prompt, self.max_tokens = prompt, max_tokens
        self.tokens: list[int] = []
        self.changed = asyncio.Event()
        self.task = asyncio.create_task(self._read(client.stream(prompt, max_tokens=max_tokens, **fields)))

    async def _read(self, call: Any) -> prefill_pb2.PrefillResponse:
        async for event in call:
            if event.HasField("done"):
                return event.done
            assert event.token.index == len(self.tokens), "each token once, in order"
            self.tokens.append(event.token.token_id)
            self.changed.set()
        raise AssertionError("the stream ended without its answer")

    async def some(self) -> None:
        async with asyncio.timeout(10):
            await self.changed.wait()

    async def answer(self) -> prefill_pb2.PrefillResponse:
        answer = await asyncio.wait_for(self.task, 40)
        check_answer(answer, self.prompt, self.max_tokens)
        assert self.tokens == list(answer.token_ids)
        return answer


async def test_both_routers_are_ready_and_a_standby_answers_as_the_leader_would(pair: Pair) -> None:
    assert [await client.readiness() for client in pair.clients] == [SERVING] * 2
    answer = await pair.standing_by.answer(PROMPT, 2, cache_salt="a", request_id="mine")
    assert answer.request_id == "mine"
    assert (await pair.leading.answer(PROMPT, 2, cache_salt="a")).cached_tokens > 0
    status = await pair.standing_by.status()
    assert status.state == "serving"
    assert status.router.address == pair.cluster.addresses[pair.leader]
    assert len(await pair.standing_by.timeline()) > 0


async def test_a_leaders_refusal_reaches_the_client_of_a_standby_as_it_is(pair: Pair) -> None:
    for client in pair.clients:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.prefill([VOCAB + 1])
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert str(VOCAB + 1) in (caught.value.details() or "")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.prefill(PROMPT, max_tokens=500, timeout=0.5)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.long
async def test_a_client_of_a_standby_that_goes_away_stops_its_request(pair: Pair) -> None:
    call = pair.standing_by.stream(PROMPT, max_tokens=2000)
    await call.read()
    assert (await pair.leading.status()).router.running == 1
    call.cancel()
    await pair.leading.quiet(5.0)


async def test_a_leader_that_is_killed_is_replaced_at_once_and_clients_of_the_standby_lose_nothing(pair: Pair) -> None:
    streams = [Reader(pair.standing_by, PROMPT[i:], 150, ignore_eos=True) for i in range(4)]
    direct = asyncio.create_task(pair.leading.answer(PROMPT, 150))
    await asyncio.gather(*(stream.some() for stream in streams))
    pair.kill(pair.leader)
    assert await pair.led_by(pair.standby) < AT_ONCE_S
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await direct
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    for stream in streams:
        await stream.answer()


async def test_a_leader_that_is_killed_and_started_again_does_not_wait_for_its_own_lease(pair: Pair) -> None:
    pair.kill(pair.standby)
    pair.kill(pair.leader)
    began = time.monotonic()
    pair.cluster.routers[pair.leader].start()
    await pair.leading.ready()
    assert time.monotonic() - began < AT_ONCE_S


async def test_a_leader_that_stops_hands_over_and_loses_no_request(pair: Pair) -> None:
    streams = [Reader(client, PROMPT[i:], 120) for i, client in enumerate([*pair.clients, *pair.clients])]
    answers = [asyncio.create_task(client.answer(PROMPT[i:], 120)) for i, client in enumerate(pair.clients)]
    await asyncio.gather(*(stream.some() for stream in streams))
    pair.cluster.routers[pair.leader].signal(signal.SIGTERM)
    assert await pair.led_by(pair.standby) < AT_ONCE_S
    # Whoever has not noticed yet is answered, too.
    await pair.leading.answer(PROMPT, 1)
    for stream in streams:
        await stream.answer()
    await asyncio.gather(*answers)
    pair.cluster.routers[pair.leader].wait_stopped(10.0)
    child = pair.cluster.routers[pair.leader].child
    assert child is not None
    assert child.returncode == 0


@pytest.mark.long
async def test_a_standby_that_stops_finishes_what_it_sends_on(pair: Pair) -> None:
    stream = Reader(pair.standing_by, PROMPT, 250)
    await stream.some()
    pair.cluster.routers[pair.standby].signal(signal.SIGTERM)
    await stream.answer()
    pair.cluster.routers[pair.standby].wait_stopped(10.0)
    assert await pair.led_by(pair.leader) < AT_ONCE_S, "it led, and leads"


@pytest.mark.long
async def test_a_leader_that_was_paused_until_another_led_sends_its_calls_on(pair: Pair) -> None:
    streams = [Reader(pair.leading, PROMPT[i:], 200) for i in range(3)]
    await asyncio.gather(*(stream.some() for stream in streams))
    with frozen(pair.pid(pair.leader)):
        await pair.led_by(pair.standby)
        await pair.standing_by.ready()
    resumed = time.monotonic()
    await pair.leading.answer(PROMPT, 1)
    for stream in streams:
        await stream.answer()
    assert time.monotonic() - resumed < 15.0, "not at their deadline"
    assert (await pair.leading.status()).router.address == pair.cluster.addresses[pair.standby]


async def test_a_router_whose_lease_is_lost_goes_on_in_its_epoch(pair: Pair) -> None:
    stream = Reader(pair.leading, PROMPT, 200)
    await stream.some()
    before = await pair.leading.status()
    pair.kill(pair.standby)
    held = await pair.etcd.get(KEYS.router)
    assert held is not None
    await pair.etcd.lease_revoke(held.lease)
    assert (await stream.answer()).attempts == 1
    after = await eventually(pair.leading.status, lambda s: s.state == "serving")
    assert after.pipeline_epoch == before.pipeline_epoch
    await pair.leading.answer(PROMPT, 2)


async def test_a_client_with_the_standard_retry_policy_sees_no_error_when_the_leader_dies(pair: Pair) -> None:
    target = "ipv4:" + ",".join(pair.cluster.addresses)
    options = (("grpc.service_config", RETRIES), ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        client = MeshClient(channel)
        calls = [asyncio.create_task(client.answer(PROMPT[i:], 100)) for i in range(6)]
        await eventually(pair.leading.status, lambda s: s.router.running == 6)
        pair.kill(pair.leader)
        await asyncio.gather(*calls)


@pytest.mark.parametrize("how", ["kill", pytest.param("terminate", marks=pytest.mark.long)])
async def test_a_directory_that_dies_or_stops_is_replaced_at_once(pair: Pair, how: str) -> None:
    held = await pair.etcd.get(KEYS.directory)
    assert held is not None
    before = await pair.leading.status()
    address = Leader.decode(held.value).address
    leader = next(p for p in pair.cluster.directories if address.rpartition(":")[2] in p.arguments)
    leader.signal(signal.SIGKILL if how == "kill" else signal.SIGTERM)
    began = time.monotonic()
    assert (await pair.leading.answer(PROMPT, 2)).attempts == 1
    assert time.monotonic() - began < AT_ONCE_S
    leader.wait_stopped(10.0)
    after = await pair.leading.status()
    assert after.directory_epoch > before.directory_epoch
    assert after.pipeline_epoch == before.pipeline_epoch
