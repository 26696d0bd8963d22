"""Processes that are killed, frozen and started again: every answer is right, nothing happens twice, all recovers."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest

from etcd_support import frozen
from mesh_support import (
    NOT_SERVING,
    QUICK,
    SERVING,
    VOCAB,
    MeshClient,
    check_answer,
    eventually,
    left_behind,
    open_client,
    running_mesh,
    write_profile,
)
from wavepp.cli.local.cluster import ClusterSpec, LocalCluster
from wavepp.cli.local.processes import ManagedProcess
from wavepp.v1 import prefill_pb2

STAGES = 4
REQUESTS = 10
IN_FLIGHT = 6
PROMPT_TOKENS = 900
WAVE_TOKENS = 256
DRAIN_S = 5.0


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Four stages, the last one slow: waves pile up before it until the ring of 8 is full."""
    run_dir = tmp_path_factory.mktemp("fragile")
    model = write_profile(run_dir / "profile.json", launch_ms=10.0, slowdown=[1, 1, 1, 6])
    spec = ClusterSpec(
        run_dir,
        model,
        STAGES,
        common_arguments=QUICK,
        stage_arguments=("--validate-invariants", "--wave-tokens-max", str(WAVE_TOKENS), "--drain-s", str(DRAIN_S)),
        router_arguments=("--readiness-stall-s", "2", "--policy", "static"),
    )
    with running_mesh(spec, quiet_logs=False) as cluster:
        yield cluster


@pytest.fixture
async def client(fragile: LocalCluster) -> AsyncIterator[MeshClient]:
    """Every test begins and ends with a mesh that serves and holds nothing."""
    async with open_client(fragile.address) as found:
        await found.ready()
        yield found
        await found.ready()
        await found.quiet(within_s=10.0)


def pid_of(process: ManagedProcess | None) -> int:
    assert process is not None
    assert process.child is not None
    return process.child.pid


def kill(process: ManagedProcess | None) -> None:
    """SIGKILL, and its end."""
    assert process is not None
    process.signal(signal.SIGKILL)
    process.wait_stopped(5.0)


def fresh_prompts(seed: int, count: int = REQUESTS) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


class Streams:
    """Streaming requests, each read to its end; what came is kept as it came."""

    def __init__(self, client: MeshClient, prompts: list[list[int]], max_tokens: int = 3) -> None:
        self.prompts = prompts
        self.max_tokens = max_tokens
        self.tokens: list[list[tuple[int, int]]] = [[] for _ in prompts]
        self.tasks = [
            asyncio.create_task(self._read(i, client.stream(prompt, max_tokens=max_tokens)))
            for i, prompt in enumerate(prompts)
        ]

    async def _read(self, i: int, call: Any) -> prefill_pb2.PrefillResponse:
        done = None
        async for event in call:
            assert done is None, "something came after the end"
            if event.WhichOneof("event") == "done":
                done = event.done
            else:
                self.tokens[i].append((event.token.index, event.token.token_id))
        assert done is not None
        return done

    async def answers(self) -> list[prefill_pb2.PrefillResponse]:
        """All answers, checked: the right tokens, each streamed once and in order."""
        answers = await asyncio.gather(*self.tasks)
        for prompt, answer, tokens in zip(self.prompts, answers, self.tokens, strict=True):
            check_answer(answer, prompt, self.max_tokens)
            assert tokens == list(enumerate(answer.token_ids))
        return answers

    async def some_token(self) -> None:
        """Return when the first token of any of them has come."""

        async def look() -> int:
            return sum(map(len, self.tokens))

        await eventually(look, bool)


async def all_under_way(client: MeshClient, count: int) -> prefill_pb2.GetStatusResponse:
    """Return when all requests hold a grant and six waves are in flight."""
    return await eventually(
        client.status, lambda s: s.router.running == count and s.router.waves_in_flight >= IN_FLIGHT
    )


@pytest.mark.parametrize("victim", [0, 2, STAGES - 1])
async def test_a_stage_killed_with_six_waves_in_flight(fragile: LocalCluster, client: MeshClient, victim: int) -> None:
    streams = Streams(client, fresh_prompts(victim))
    before = await all_under_way(client, REQUESTS)
    kill(fragile.stages[victim])
    fragile.stages[victim].start()
    answers = await streams.answers()

    after = await client.quiet(within_s=5.0)
    assert after.pipeline_epoch > before.pipeline_epoch
    changed = {s.stage for s, t in zip(before.stages, after.stages, strict=True) if s.incarnation != t.incarnation}
    assert changed == {victim}
    for answer in answers:
        assert answer.attempts > 1
        # The new process was empty, so nothing could be reused, whatever the others hold.
        assert answer.cached_tokens == 0
    timeline = await client.timeline()
    new = [wave for wave in timeline if wave.pipeline_epoch > before.pipeline_epoch]
    assert after.stages[victim].waves_done == len(new), "executed exactly what was issued in the new epoch"
    for answer in answers:
        chunks = [c for w in new for c in w.chunks if c.request_id == answer.request_id and not c.decode]
        # Each token of the prompt once, in order; what an earlier attempt had generated comes behind it.
        assert chunks[0].start == 0
        assert all(a.start + a.length == b.start for a, b in itertools.pairwise(chunks))
        assert chunks[-1].start + chunks[-1].length >= PROMPT_TOKENS


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.long), STAGES - 1])
async def test_a_stage_that_is_to_stop_lets_what_runs_end(
    fragile: LocalCluster, client: MeshClient, victim: int
) -> None:
    streams = Streams(client, fresh_prompts(80 + victim))
    before = await all_under_way(client, REQUESTS)
    stage = fragile.stages[victim]
    stage.signal(signal.SIGTERM)
    await eventually(client.status, lambda s: s.state.startswith(f"stage {victim} is to stop"))
    late = asyncio.create_task(client.answer(fresh_prompts(85 + victim, 1)[0], 2))
    answers = await streams.answers()
    assert {a.attempts for a in answers} == {1}
    await asyncio.to_thread(stage.wait_stopped, DRAIN_S)
    assert stage.child is not None
    assert stage.child.returncode == 0
    assert not late.done()
    stage.start()
    assert (await late).attempts == 1, "it was not admitted to a pipeline that was to stop"
    after = await client.quiet(within_s=5.0)
    assert after.stages[victim].incarnation != before.stages[victim].incarnation
    assert after.pipeline_epoch > before.pipeline_epoch


@pytest.mark.parametrize(("signals", "max_tokens"), [(1, 80), (2, 25)])
async def test_what_does_not_end_in_time_does_not_hold_a_stage_that_is_to_stop(
    fragile: LocalCluster, client: MeshClient, signals: int, max_tokens: int
) -> None:
    streams = Streams(client, fresh_prompts(90 + signals, 1), max_tokens)
    await streams.some_token()
    stage = fragile.stages[1]
    stage.signal(signal.SIGTERM)
    await eventually(client.status, lambda s: s.state.startswith("stage 1 is to stop"))
    if signals == 2:
        stage.signal(signal.SIGTERM)
    began = time.monotonic()
    await asyncio.to_thread(stage.wait_stopped, 3 * DRAIN_S)
    assert (time.monotonic() - began > DRAIN_S / 2) == (signals == 1)
    stage.start()
    assert (await streams.answers())[0].attempts == 2


async def test_deadlines_hold_while_a_stage_is_away(fragile: LocalCluster, client: MeshClient) -> None:
    streams = Streams(client, fresh_prompts(20, 2))
    await streams.some_token()
    kill(fragile.stages[1])
    began = time.monotonic()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.prefill([1, 2, 3], timeout=1.0)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - began < 2.0
    status = await eventually(client.status, lambda s: "no stage 1" in s.state)
    assert not status.stages[1].reachable
    await eventually(client.readiness, lambda found: found == NOT_SERVING)
    fragile.stages[1].start()
    await streams.answers()


async def test_a_frozen_stage_is_not_ready_and_recovers(fragile: LocalCluster, client: MeshClient) -> None:
    streams = Streams(client, fresh_prompts(30))
    before = await all_under_way(client, REQUESTS)
    with frozen(pid_of(fragile.stages[2])):
        began = time.monotonic()
        await eventually(client.readiness, lambda found: found == NOT_SERVING, 8.0)
        assert time.monotonic() - began < 6.0
        assert (await client.status()).state != "serving", "people are told what the health service is told"
    await streams.answers()
    await client.ready(10.0)
    after = await client.quiet(5.0)
    assert after.pipeline_epoch >= before.pipeline_epoch


async def test_a_stage_frozen_until_its_lease_is_gone_comes_back_as_it_was(
    fragile: LocalCluster, client: MeshClient
) -> None:
    streams = Streams(client, fresh_prompts(40))
    before = await all_under_way(client, REQUESTS)
    with frozen(pid_of(fragile.stages[1])):
        # GetStatus asks the stages that are registered.
        await eventually(client.status, lambda s: [t.stage for t in s.stages] == [0, 2, 3], 15.0)
    answers = await streams.answers()
    assert any(a.attempts > 1 for a in answers)
    after = await client.quiet(5.0)
    assert after.stages[1].incarnation == before.stages[1].incarnation
    assert after.stages[1].pid == before.stages[1].pid


async def test_a_directory_killed_and_started_again(fragile: LocalCluster, client: MeshClient) -> None:
    streams = Streams(client, fresh_prompts(50))
    before = await all_under_way(client, REQUESTS)
    kill(fragile.directory)
    late = asyncio.create_task(client.answer(fresh_prompts(51, 1)[0], 2))
    answers = await streams.answers()
    assert {a.attempts for a in answers} == {1}, "what ran went on without a directory"
    assert not late.done()
    assert fragile.directory is not None
    fragile.directory.start()
    await late
    after = await client.quiet(5.0)
    assert after.directory_epoch > before.directory_epoch
    assert after.pipeline_epoch == before.pipeline_epoch
    # The new one has learned what the stages hold.
    assert list(after.directory.stage_in_sync) == [True] * STAGES
    assert (await client.answer(streams.prompts[0])).cached_tokens > 0


async def test_a_router_killed_and_started_again_on_its_port(fragile: LocalCluster, client: MeshClient) -> None:
    streams = Streams(client, fresh_prompts(60))
    before = await all_under_way(client, REQUESTS)
    assert left_behind(before)
    kill(fragile.router)
    failed = await asyncio.gather(*streams.tasks, return_exceptions=True)
    assert {e.code() for e in failed if isinstance(e, grpc.aio.AioRpcError)} == {grpc.StatusCode.UNAVAILABLE}
    assert fragile.router is not None
    fragile.router.start()
    await eventually(client.readiness, lambda found: found == SERVING, 30.0)
    # The stages dropped what the dead router ran.
    after = await client.quiet(2.0)
    assert after.pipeline_epoch > before.pipeline_epoch
    assert [s.incarnation for s in after.stages] == [s.incarnation for s in before.stages]
    for prompt in streams.prompts[:3]:
        await client.answer(prompt, 2)


async def test_another_directory_takes_over_from_one_that_hangs(fragile: LocalCluster, client: MeshClient) -> None:
    assert fragile.directory is not None
    standby = ManagedProcess(
        "directory-2",
        "wavepp.directory",
        ("--etcd-endpoints", fragile.etcd_endpoints, *QUICK),
        fragile.spec.run_dir / "directory-2.log",
    )
    standby.start()
    before = await client.status()
    try:
        with frozen(pid_of(fragile.directory)):
            # The frozen one's streams stay open: nothing but etcd says that it does not lead any more.
            answer = await client.answer(fresh_prompts(70, 1)[0], timeout=20)
            assert answer.attempts == 1
            after = await eventually(client.status, lambda s: not left_behind(s), 5.0)
            assert after.directory_epoch > before.directory_epoch
            assert after.pipeline_epoch == before.pipeline_epoch
        await client.answer(fresh_prompts(71, 1)[0])
    finally:
        began = time.monotonic()
        standby.stop()
    assert time.monotonic() - began < 3.0, "its streams end with its leadership, not with the server's patience"
    await client.answer(fresh_prompts(72, 1)[0], timeout=10)
