"""The clusters that the programs measure, and the flags that the programs share."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import grpc

from wavepp.cli.local.cluster import ClusterSpec, LocalCluster
from wavepp.cli.models.fetch import SMOLLM2, fetch_model
from wavepp.infra.rpc import CHANNEL_OPTIONS
from wavepp.profiles.profile import load_profile
from wavepp.v1 import prefill_pb2, prefill_pb2_grpc

HOME: Final = Path(__file__).parent.parent / ".wavepp"
"""Not the temporary directory: that may be in memory, and etcd is to write to a disk."""
READY_TIMEOUT_S: Final = 120.0
ADMIN_TIMEOUT_S: Final = 10.0
BLOCK_TOKENS: Final = 64
VOCABULARY: Final = 32_000
"""Of the emulated models."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with what every program takes."""
    made = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    made.add_argument("--quick", action="store_true", help="a smoke run of seconds; its figures mean nothing")
    made.add_argument("--seed", type=int, default=1, help="of the prompts")
    return made


def add_model(made: argparse.ArgumentParser) -> None:
    """--model, for programs that run a real one."""
    made.add_argument("--model", type=Path, help="checkpoint directory; SmolLM2-135M is fetched if absent")


def model_path(given: Path | None) -> Path:
    """The checkpoint to use. Raises FetchError."""
    return given or fetch_model(SMOLLM2, HOME / "models", lambda step: print(f"model: {step}"))


def emulated(directory: Path, stages: int, token_us: float, **model: int) -> str:
    """The name of an emulated model whose steps take `token_us` a token on each stage, whatever the number of stages.

    With 0 steps take no time to speak of: what is left is the mesh itself. `model`: what it is to have otherwise.
    """
    path = directory / f"emulated-{stages}-{token_us:g}.json"
    small = load_profile("small")
    changes = {
        "name": "perf",
        "derived": "made up",
        "measured_stages": stages,
        "launch_ms": 0.0,
        # Tokens must cost something in a profile.
        "token_us": token_us or 1e-6,
        "pair_ps": 0.0,
        "model": small.emulated().model_copy(update={"layers": stages, "vocab_size": VOCABULARY, **model}),
    }
    path.write_text(small.model_copy(update=changes).model_dump_json())
    return f"emulated:{path}"


@contextmanager
def cluster(
    model: str,
    stages: int,
    *,
    stage: Sequence[str] = (),
    router: Sequence[str] = (),
    directory: Sequence[str] = (),
    routers: int = 1,
    directories: int = 1,
) -> Iterator[LocalCluster]:
    """A ready cluster in a directory of its own, with etcd on disk; the flags are those of the processes."""
    HOME.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="perf-", dir=HOME) as run_dir:
        spec = ClusterSpec(
            Path(run_dir),
            model,
            stages,
            routers=routers,
            directories=directories,
            common_arguments=("--log-level", "warning"),
            stage_arguments=tuple(stage),
            router_arguments=tuple(router),
            directory_arguments=tuple(directory),
        )
        with LocalCluster(spec) as started:
            started.wait_ready(READY_TIMEOUT_S)
            yield started


def pids_of(started: LocalCluster) -> dict[str, int]:
    """Process ids of "router", "directory", "stage-N" and, unless it is the user's own, "etcd"."""
    pids = {process.name: process.child.pid for process in started.processes if process.child is not None}
    return {**pids, "etcd": started.etcd.pid} if started.etcd is not None else pids


def status(address: str) -> prefill_pb2.GetStatusResponse:
    """The cluster's status."""
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        stub = prefill_pb2_grpc.AdminServiceStub(channel)
        return stub.GetStatus(prefill_pb2.GetStatusRequest(), timeout=ADMIN_TIMEOUT_S)


def model_info(address: str) -> prefill_pb2.GetModelInfoResponse:
    """What the cluster serves."""
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        stub = prefill_pb2_grpc.PrefillServiceStub(channel)
        return stub.GetModelInfo(prefill_pb2.GetModelInfoRequest(), timeout=ADMIN_TIMEOUT_S)


def timeline(address: str) -> prefill_pb2.GetTimelineResponse:
    """The last waves with their steps."""
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        stub = prefill_pb2_grpc.AdminServiceStub(channel)
        return stub.GetTimeline(prefill_pb2.GetTimelineRequest(), timeout=ADMIN_TIMEOUT_S)
