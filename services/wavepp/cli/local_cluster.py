"""A whole cluster on this machine: etcd, a directory, a router and the stages, as separate processes."""

from __future__ import annotations

import logging
import shutil
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from wavepp.cli.processes import ManagedProcess, ProcessDiedError
from wavepp.core.errors import WaveppError
from wavepp.infra.etcd_server import EtcdServer

_log = logging.getLogger(__name__)

POLL_S: Final = 0.05
PROBE_TIMEOUT_S: Final = 1.0


class NotReadyError(WaveppError):
    """The cluster did not become ready in time."""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """What to start. `stage_arguments`, `router_arguments`, `directory_arguments` and `common_arguments` are flags as
    the processes take them; `per_stage` adds flags for one stage. `etcd_endpoints`: a user's own etcd instead of ours.
    """

    run_dir: Path
    model: str
    stages: int
    router_port: int = 0
    tokenizer: Path | None = None
    etcd_endpoints: str = ""
    common_arguments: tuple[str, ...] = ()
    stage_arguments: tuple[str, ...] = ()
    router_arguments: tuple[str, ...] = ()
    directory_arguments: tuple[str, ...] = ()
    per_stage: dict[int, tuple[str, ...]] = field(default_factory=dict)


class LocalCluster:
    """Starts, watches and stops the processes. Use as `with LocalCluster(spec) as cluster`."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.router_port = spec.router_port or free_port()
        self.etcd: EtcdServer | None = None
        self.stages: list[ManagedProcess] = []
        self.directory: ManagedProcess | None = None
        self.router: ManagedProcess | None = None

    def __enter__(self) -> LocalCluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.router_port}"

    @property
    def etcd_endpoints(self) -> str:
        """Of the etcd in use."""
        return self.spec.etcd_endpoints or (self.etcd.endpoint if self.etcd else "")

    @property
    def processes(self) -> list[ManagedProcess]:
        """All but etcd, in the order in which they start."""
        return [p for p in (self.directory, self.router, *self.stages) if p is not None]

    # ---- start ----

    def start(self) -> None:
        """Start everything; returns before it is ready (see `wait_ready`). Raises StartupError when etcd fails."""
        spec = self.spec
        spec.run_dir.mkdir(parents=True, exist_ok=True)
        if not spec.etcd_endpoints:
            # The data of an earlier run says nothing about this one: no process of it lives.
            data_dir = spec.run_dir / "etcd"
            shutil.rmtree(data_dir, ignore_errors=True)
            self.etcd = EtcdServer(data_dir, spec.run_dir / "etcd.log")
            self.etcd.start()
        common = ("--etcd-endpoints", self.etcd_endpoints, *spec.common_arguments)
        self.directory = self._spawn("directory", "wavepp.directory", (*common, *spec.directory_arguments))
        router = [*common, "--bind-port", str(self.router_port)]
        if spec.tokenizer is not None:
            router += ["--tokenizer", str(spec.tokenizer)]
        self.router = self._spawn("router", "wavepp.router", (*router, *spec.router_arguments))
        for index in range(spec.stages):
            arguments = (
                *common,
                *("--stage", str(index), "--stages", str(spec.stages), "--model", spec.model),
                *spec.stage_arguments,
                *spec.per_stage.get(index, ()),
            )
            self.stages.append(self._spawn(f"stage-{index}", "wavepp.stage", arguments))

    def _spawn(self, name: str, module: str, arguments: tuple[str, ...]) -> ManagedProcess:
        log_file = self.spec.run_dir / f"{name}.log"
        log_file.unlink(missing_ok=True)
        process = ManagedProcess(name, module, arguments, log_file)
        process.start()
        return process

    # ---- watch ----

    def wait_ready(self, timeout_s: float = 120.0, on_wait: Callable[[], None] | None = None) -> None:
        """Return when the router serves. Raises ProcessDiedError at once when a process ends, NotReadyError in time.

        `on_wait` is called between looks (to draw, say).
        """
        deadline = time.monotonic() + timeout_s
        with grpc.insecure_channel(self.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while time.monotonic() < deadline:
                for process in self.processes:
                    process.check()
                if self._serving(stub):
                    return
                if on_wait is not None:
                    on_wait()
                time.sleep(POLL_S)
        words = "; ".join(f"{p.name}: {p.last_words()}" for p in self.processes)
        raise NotReadyError(f"the cluster is not ready after {timeout_s:g} s; {words}")

    def _serving(self, stub: health_pb2_grpc.HealthStub) -> bool:
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=PROBE_TIMEOUT_S)
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def supervise(self, stopped: Callable[[float], bool]) -> None:
        """Start again what dies, until `stopped(seconds)` (which waits so long) says so.

        Raises ProcessDiedError when etcd died, or when a process dies too often.
        """
        while not stopped(0.5):
            if self.etcd is not None and self.etcd.exit_code() is not None:
                raise ProcessDiedError(f"etcd ended with exit code {self.etcd.exit_code()}")
            for process in self.processes:
                if not process.running:
                    process.restart()

    # ---- stop ----

    def stop(self) -> None:
        """Stop everything: the router first, so that what runs can end, etcd last."""
        if self.router is not None:
            self.router.stop()
        rest = [p for p in self.processes if p is not self.router]
        for process in rest:
            process.signal(signal.SIGTERM)
        for process in rest:
            process.wait_stopped(15.0)
        if self.etcd is not None:
            self.etcd.stop()
            self.etcd = None


def free_port() -> int:
    """A port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
