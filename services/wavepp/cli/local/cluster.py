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

from wavepp.cli.local.leftovers import forget_processes, note_processes
from wavepp.cli.local.processes import ManagedProcess, ProcessDiedError, too_often
from wavepp.core.errors import WaveppError
from wavepp.infra.addresses import join_host_port
from wavepp.infra.etcd.server import EtcdServer
from wavepp.infra.rpc import CHANNEL_OPTIONS

_log = logging.getLogger(__name__)

POLL_S: Final = 0.05
PROBE_TIMEOUT_S: Final = 1.0
SUPERVISE_PERIOD_S: Final = 0.5
ETCD_WAIT_S: Final = "5"


class ClusterNotReadyError(WaveppError):
    """The cluster did not become ready in time."""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """What to start. Of several routers and directories one leads, the others stand by; `router_port` is the first
    one's. `stage_arguments`, `router_arguments`, `directory_arguments` and `common_arguments` are flags as
    the processes take them; `per_stage` adds flags for one stage. `etcd_endpoints`: a user's own etcd instead of ours.
    `host`: the address of this machine that all listen on, unless their flags say otherwise; `launchers`: by the name
    of a process, the command that runs it (`ip netns exec NAME`, say).
    """

    run_dir: Path
    model: str
    stages: int
    router_port: int = 0
    routers: int = 1
    directories: int = 1
    tokenizer: Path | None = None
    host: str = "127.0.0.1"
    etcd_endpoints: str = ""
    common_arguments: tuple[str, ...] = ()
    stage_arguments: tuple[str, ...] = ()
    router_arguments: tuple[str, ...] = ()
    directory_arguments: tuple[str, ...] = ()
    per_stage: dict[int, tuple[str, ...]] = field(default_factory=dict)
    launchers: dict[str, tuple[str, ...]] = field(default_factory=dict)


class LocalCluster:
    """Starts, watches and stops the processes. Use as `with LocalCluster(spec) as cluster`."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.router_port = spec.router_port or free_port()
        self.etcd: EtcdServer | None = None
        self.stages: list[ManagedProcess] = []
        self.directories: list[ManagedProcess] = []
        self.routers: list[ManagedProcess] = []
        self.router_ports: list[int] = []
        self._etcd_started: list[float] = []

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
        """Where clients connect: the first router's."""
        return join_host_port(self.spec.host, self.router_port)

    @property
    def addresses(self) -> list[str]:
        """Of all routers."""
        return [join_host_port(self.spec.host, port) for port in self.router_ports]

    @property
    def router(self) -> ManagedProcess | None:
        """The first router."""
        return self.routers[0] if self.routers else None

    @property
    def directory(self) -> ManagedProcess | None:
        """The first directory."""
        return self.directories[0] if self.directories else None

    @property
    def etcd_endpoints(self) -> str:
        """Of the etcd in use."""
        return self.spec.etcd_endpoints or (self.etcd.endpoint if self.etcd else "")

    @property
    def processes(self) -> list[ManagedProcess]:
        """All but etcd, in the order in which they start."""
        return [*self.directories, *self.routers, *self.stages]

    @property
    def pids(self) -> dict[str, int]:
        """Of what runs, etcd included, by name."""
        found = {p.name: p.child.pid for p in self.processes if p.child is not None and p.running}
        if self.etcd is not None and self.etcd.exit_code() is None:
            found["etcd"] = self.etcd.pid
        return found

    # ---- start ----

    def start(self) -> None:
        """Start everything; returns before it is ready (see `wait_ready`). Raises StartupError when etcd fails."""
        spec = self.spec
        spec.run_dir.mkdir(parents=True, exist_ok=True)
        if not spec.etcd_endpoints:
            # The data of an earlier run says nothing about this one: no process of it lives.
            data_dir = spec.run_dir / "etcd"
            shutil.rmtree(data_dir, ignore_errors=True)
            log_file = spec.run_dir / "etcd.log"
            log_file.unlink(missing_ok=True)
            self.etcd = EtcdServer(data_dir, log_file, host=spec.host)
            self.etcd.start()
            self._etcd_started.append(time.monotonic())
            note_processes(spec.run_dir, self.pids)
        # Somebody is looking on, who wants to hear of an etcd that is not there.
        etcd = ("--etcd-endpoints", self.etcd_endpoints, "--etcd-wait-s", ETCD_WAIT_S)
        common = ("--bind-host", spec.host, *etcd, *spec.common_arguments)
        for index in range(spec.directories):
            # A port that stays: started again, it knows by its address that its predecessor is gone.
            arguments = (*common, "--bind-port", str(free_port()), *spec.directory_arguments)
            self.directories.append(self._spawn(_numbered("directory", index), "wavepp.directory", arguments))
        self.router_ports = [self.router_port, *(free_port() for _ in range(1, spec.routers))]
        tokenizer = ("--tokenizer", str(spec.tokenizer)) if spec.tokenizer is not None else ()
        for index, port in enumerate(self.router_ports):
            arguments = (*common, "--bind-port", str(port), *tokenizer, *spec.router_arguments)
            self.routers.append(self._spawn(_numbered("router", index), "wavepp.router", arguments))
        for index in range(spec.stages):
            arguments = (
                *common,
                *("--stage", str(index), "--stages", str(spec.stages), "--model", spec.model),
                *spec.stage_arguments,
                *spec.per_stage.get(index, ()),
            )
            self.stages.append(self._spawn(f"stage-{index}", "wavepp.stage", arguments))
        note_processes(spec.run_dir, self.pids)

    def _spawn(self, name: str, module: str, arguments: tuple[str, ...]) -> ManagedProcess:
        log_file = self.spec.run_dir / f"{name}.log"
        log_file.unlink(missing_ok=True)
        process = ManagedProcess(name, module, arguments, log_file, self.spec.launchers.get(name, ()))
        process.start()
        return process

    # ---- watch ----

    def wait_ready(self, timeout_s: float = 120.0, on_wait: Callable[[], None] | None = None) -> None:
        """Return when the router serves. Raises ProcessDiedError at once when a process ends, and ClusterNotReadyError
        when the time is up.

        `on_wait` is called between looks (to draw, say).
        """
        deadline = time.monotonic() + timeout_s
        with grpc.insecure_channel(self.address, options=CHANNEL_OPTIONS) as channel:
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
        raise ClusterNotReadyError(f"the cluster is not ready after {timeout_s:g} s; {words}")

    def _serving(self, stub: health_pb2_grpc.HealthStub) -> bool:
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=PROBE_TIMEOUT_S)
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def supervise(self, stopped: Callable[[float], bool], on_restart: Callable[[str], None] | None = None) -> None:
        """Start again what dies, until `stopped(seconds)` (which waits so long) says so.

        `on_restart` hears what died. Raises ProcessDiedError when something dies too often, and StartupError when
        etcd does not come back.
        """
        tell = on_restart or (lambda _name: None)
        while not stopped(SUPERVISE_PERIOD_S):
            if self.etcd is not None and self.etcd.exit_code() is not None:
                tell("etcd")
                self._restart_etcd(self.etcd)
            for process in self.processes:
                if not process.running and not stopped(0):
                    tell(process.name)
                    process.restart()
                    note_processes(self.spec.run_dir, self.pids)

    def _restart_etcd(self, etcd: EtcdServer) -> None:
        """With the same ports and the same data: the other processes find everything as it was."""
        code = etcd.exit_code()
        if too_often(self._etcd_started):
            raise ProcessDiedError(f"etcd ended with exit code {code} (log: {self.spec.run_dir / 'etcd.log'})")
        _log.warning("etcd died, starting it again")
        etcd.stop()
        etcd.start()
        self._etcd_started.append(time.monotonic())
        note_processes(self.spec.run_dir, self.pids)

    # ---- stop ----

    def stop(self) -> None:
        """Stop everything: the routers first, so that what runs can end, etcd last."""
        for router in reversed(self.routers):
            router.stop()
        rest = [p for p in self.processes if p not in self.routers]
        for process in rest:
            process.signal(signal.SIGTERM)
        for process in rest:
            process.wait_stopped(15.0)
        if self.etcd is not None:
            self.etcd.stop()
            self.etcd = None
        if not self.pids:
            forget_processes(self.spec.run_dir)

    def kill(self) -> None:
        """End everything at once: for a user who does not want to wait for `stop`, which must still be called."""
        for process in self.processes:
            process.signal(signal.SIGKILL)


def _numbered(name: str, index: int) -> str:
    return f"{name}-{index + 1}" if index else name


def free_port() -> int:
    """A port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
