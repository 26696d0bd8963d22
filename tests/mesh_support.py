"""A whole mesh of real processes with emulated stages, and what its tests ask of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from emulated_support import emulated_answer
from wavepp.cli.local.cluster import ClusterSpec, LocalCluster
from wavepp.v1 import prefill_pb2, prefill_pb2_grpc

T = TypeVar("T")

VOCAB = 32_000
BLOCK = 64
READY_S = 60.0
"""Far above what the start of a mesh takes on a busy machine."""
POLL_S = 0.01
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNLIMITED = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
QUICK = ("--lease-ttl-s", "5", "--log-format", "json")
"""The shortest lease: who dies is replaced after 5 s."""


async def eventually(look: Callable[[], Awaitable[T]], accept: Callable[[T], bool], within_s: float = 20.0) -> T:
    """What `look` gives once `accept` likes it; fails with what it gave last."""
    ends = time.monotonic() + within_s
    while True:
        last = await look()
        if accept(last):
            return last
        assert time.monotonic() < ends, f"not so within {within_s:g} s: {last!r}"
        await asyncio.sleep(POLL_S)


MODEL: Mapping[str, Any] = {
    "layers": 4,
    "vocab_size": VOCAB,
    "max_tokens": 131_072,
    "hidden_size": 16,
    "hidden_bytes": 64,
}
PROFILE: Mapping[str, Any] = {
    "name": "test",
    "derived": "made up for tests",
    "measured_stages": 4,
    "launch_ms": 0.2,
    "token_us": 1.0,
    "pair_ps": 0.0,
    "wave_tokens_max": 512,
    "wave_tokens_min": 128,
    "pool_tokens": 65_536,
}


def write_profile(path: Path, model: Mapping[str, Any] | None = None, **changes: Any) -> str:
    """An emulated model as `--model` takes it; `model` and `changes` to a quick one of 4 layers."""
    path.write_text(json.dumps({**PROFILE, **changes, "model": {**MODEL, **(model or {})}}))
    return f"emulated:{path}"


@contextmanager
def running_mesh(spec: ClusterSpec, *, quiet_logs: bool) -> Iterator[LocalCluster]:
    """The processes, ready. With `quiet_logs` nobody may have logged an error by the end."""
    with LocalCluster(spec) as cluster:
        cluster.wait_ready(READY_S)
        yield cluster
        complaints = log_complaints(cluster) if quiet_logs else []
    assert not complaints, "\n".join(complaints[:20])


def log_complaints(cluster: LocalCluster) -> list[str]:
    """Errors that the processes logged, and lines that are no log records (a traceback, a library's own words)."""
    found = []
    for process in cluster.processes:
        for line in process.log_file.read_text(errors="replace").splitlines():
            try:
                level = json.loads(line)["level"]
            except (ValueError, TypeError, KeyError):
                level = "no record"
            if level not in ("debug", "info", "warning"):
                found.append(f"{process.name}: {line[:500]}")
    return found


class MeshClient:
    """A client of the router."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.stub: Any = prefill_pb2_grpc.PrefillServiceStub(channel)
        self.admin: Any = prefill_pb2_grpc.AdminServiceStub(channel)
        self.health: Any = health_pb2_grpc.HealthStub(channel)

    def prefill(self, prompt: Sequence[int], *, timeout: float = 60.0, metadata: Any = None, **fields: Any) -> Any:
        """One unary call, to be awaited or cancelled."""
        return self.stub.Prefill(request(prompt, **fields), timeout=timeout, metadata=metadata)

    def stream(self, prompt: Sequence[int], *, timeout: float = 60.0, **fields: Any) -> Any:
        """One streaming call."""
        return self.stub.PrefillStream(request(prompt, **fields), timeout=timeout)

    async def answer(self, prompt: Sequence[int], max_tokens: int = 1, **fields: Any) -> prefill_pb2.PrefillResponse:
        """The answer, which must be the predicted one."""
        response = await self.prefill(prompt, max_tokens=max_tokens, **fields)
        check_answer(response, prompt, max_tokens)
        return response

    async def status(self) -> prefill_pb2.GetStatusResponse:
        """What every process holds and does."""
        return await self.admin.GetStatus(prefill_pb2.GetStatusRequest(), timeout=10)

    async def timeline(self) -> list[prefill_pb2.WaveRecord]:
        """Finished waves, oldest first."""
        return list((await self.admin.GetTimeline(prefill_pb2.GetTimelineRequest(), timeout=10)).waves)

    async def readiness(self) -> int | None:
        """What the health service says; None when nobody answers."""
        try:
            return (await self.health.Check(health_pb2.HealthCheckRequest(), timeout=2)).status
        except grpc.aio.AioRpcError:
            return None

    async def quiet(self, within_s: float = 2.0) -> prefill_pb2.GetStatusResponse:
        """The status once nothing is held or under way any more, within so many seconds from now."""
        return await eventually(self.status, lambda status: not left_behind(status), within_s)

    async def ready(self, within_s: float = READY_S) -> None:
        """Return when the router serves."""
        await eventually(self.readiness, lambda found: found == SERVING, within_s)


@asynccontextmanager
async def open_client(address: str) -> AsyncIterator[MeshClient]:
    """A client that may send messages of any size, and connects again at once."""
    options = (*UNLIMITED, ("grpc.max_reconnect_backoff_ms", 200), ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield MeshClient(channel)


def request(prompt: Sequence[int], **fields: Any) -> prefill_pb2.PrefillRequest:
    """A request with token ids."""
    return prefill_pb2.PrefillRequest(token_ids=prefill_pb2.TokenIds(ids=prompt), **fields)


def check_answer(response: prefill_pb2.PrefillResponse, prompt: Sequence[int], max_tokens: int) -> None:
    """Exactly the tokens that the emulated model must give, and counts that add up."""
    assert list(response.token_ids) == emulated_answer(prompt, max_tokens, VOCAB)
    assert response.prompt_tokens == len(prompt)
    assert response.completion_tokens == max_tokens
    assert response.cached_tokens % BLOCK == 0
    assert response.cached_tokens < len(prompt)
    if response.attempts == 1:
        assert response.cached_tokens + response.computed_tokens == len(prompt)


def left_behind(status: prefill_pb2.GetStatusResponse) -> list[str]:
    """Whatever is not as it must be when nobody asks for anything."""
    router, directory = status.router, status.directory
    counts = {
        "router queued": router.queued,
        "router admitting": router.admitting,
        "router running": router.running,
        "waves in flight": router.waves_in_flight,
        "directory grants": directory.grants,
        "grant records in etcd": directory.etcd_grant_records,
        "rounds in flight": directory.rounds_in_flight,
    }
    for stage in status.stages:
        name = f"stage {stage.stage}"
        counts[f"{name} leases"] = stage.leases
        counts[f"{name} waves queued"] = stage.waves_queued
        for pool in stage.pools:
            counts[f"{name} {pool.pool} reserved"] = pool.reserved
            counts[f"{name} {pool.pool} in use"] = pool.capacity - pool.free - pool.cached
    found = [f"{name}: {count}" for name, count in counts.items() if count]
    found += [f"stage {s.stage}: no pools reported" for s in status.stages if not s.reachable or not s.pools]
    if not directory.reachable or not status.stages:
        found.append("the directory or the stages do not answer")
    return found
