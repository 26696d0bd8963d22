"""Groups of settings that several processes share. A process' configuration inherits those it has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode

from wavepp.core.limits import NAME_BYTES_MAX
from wavepp.infra.addresses import brackets_hint, join_host_port
from wavepp.infra.errors import StartupError
from wavepp.infra.etcd.channel import EtcdTls
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.session import LEASE_TTL_MAX_S, LEASE_TTL_MIN_S
from wavepp.infra.logs import LogFormat, LogLevel
from wavepp.infra.telemetry import TracingOptions

_HOST_PORT: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253}):(?P<port>\d{1,5})")
WILDCARD_HOSTS: Final = frozenset({"", "0.0.0.0", "::"})
_ENDPOINTS_MAX: Final = 16


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _host_port(value: str) -> str:
    """Accepts host:port, with http:// before it as other etcd clients want it."""
    if value.startswith("https://"):
        # Taken as it is, it would be spoken to in clear text.
        raise ValueError(f"{value!r}: write host:port, and set etcd_tls")
    bare = value.removeprefix("http://").rstrip("/")
    found = _HOST_PORT.fullmatch(bare)
    if not found or not 0 < int(found["port"]) < 65536:
        raise ValueError(f"{value!r} is not host:port{brackets_hint(bare)}")
    return bare


def _without_brackets(host: Any) -> Any:
    return host.strip("[]") if isinstance(host, str) else host


def _existing_file(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"file {str(path)!r} does not exist")
    return path


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=NAME_BYTES_MAX)]
"""Goes into etcd keys and metric labels, so without slashes and spaces."""
HostPort = Annotated[str, AfterValidator(_host_port)]
HostPorts = Annotated[tuple[HostPort, ...], NoDecode, BeforeValidator(_split)]
Host = Annotated[str, BeforeValidator(_without_brackets), Field(max_length=253)]
"""A name or an address; of an IPv6 address without brackets, which may be given."""
ExistingFile = Annotated[Path, AfterValidator(_existing_file)]


class ClusterFields(BaseModel):
    """Who belongs together."""

    cluster: Name = Field(default="default", description="Name of the cluster; everything in etcd lies below it.")
    pipeline: Name = Field(default="p0", description="Name of the pipeline.")


class EtcdFields(BaseModel):
    """How to reach etcd, and how long it lets this process live without a word."""

    etcd_endpoints: HostPorts = Field(
        default=("127.0.0.1:2379",), min_length=1, max_length=_ENDPOINTS_MAX, description="etcd's endpoints, host:port."
    )
    etcd_tls: bool = Field(default=False, description="Speak TLS to etcd (implied by the files below).")
    etcd_ca_file: ExistingFile | None = Field(default=None, description="CA certificate for etcd, PEM.")
    etcd_cert_file: ExistingFile | None = Field(default=None, description="Client certificate for etcd, PEM.")
    etcd_key_file: ExistingFile | None = Field(default=None, description="Key of the client certificate, PEM.")
    etcd_timeout_s: float = Field(default=3.0, ge=0.1, le=60.0, description="Time limit of each call to etcd.")
    etcd_wait_s: float = Field(
        default=300.0, ge=0, le=86_400, description="How long a process waits for etcd when it starts."
    )
    lease_ttl_s: int = Field(
        default=10,
        ge=LEASE_TTL_MIN_S,
        le=LEASE_TTL_MAX_S,
        description="A process that is silent for so long counts as dead.",
    )

    @model_validator(mode="after")
    def _check_etcd_files(self) -> Self:
        if (self.etcd_cert_file is None) != (self.etcd_key_file is None):
            raise ValueError("etcd_cert_file and etcd_key_file come together; only one of them is given")
        return self

    def etcd_client(self) -> EtcdClient:
        """A client for these settings; call it inside the event loop. Raises StartupError for an unreadable file."""
        files = (self.etcd_ca_file, self.etcd_cert_file, self.etcd_key_file)
        tls = None
        if self.etcd_tls or any(files):
            try:
                tls = EtcdTls(*(path.read_bytes() if path else None for path in files))
            except OSError as error:
                raise StartupError(f"cannot read {error.filename}: {error.strerror}") from error
        return EtcdClient(self.etcd_endpoints, timeout_s=self.etcd_timeout_s, tls=tls)


class BindFields(BaseModel):
    """Where this process listens, and under which address others reach it."""

    bind_host: Host = Field(
        default="127.0.0.1", description="Address to listen on; 0.0.0.0 and :: for all, IPv6 included."
    )
    bind_port: int = Field(default=0, ge=0, le=65535, description="gRPC port; 0 takes a free one.")
    advertise_address: str | None = Field(
        default=None, max_length=260, description="host or host:port for others to connect to; bind address if absent."
    )

    @model_validator(mode="after")
    def _check_advertise(self) -> Self:
        if self.advertise_address is None:
            if self.bind_host in WILDCARD_HOSTS:
                raise ValueError(
                    f"bind_host {self.bind_host!r} is no address to connect to; give advertise_address as well"
                )
        elif not _HOST_PORT.fullmatch(self.advertise_address):
            if hint := brackets_hint(self.advertise_address):
                raise ValueError(f"advertise_address {self.advertise_address!r} is not host or host:port{hint}")
            _host_port(f"{self.advertise_address}:1")
        return self

    @property
    def advertised_host(self) -> str:
        """The host that is published, without a port and brackets."""
        address = self.advertise_address or self.bind_host
        found = _HOST_PORT.fullmatch(address)
        return (found["host"] if found else address).strip("[]")

    def advertised(self, port: int) -> str:
        """host:port to publish, where `port` is the one that the server got."""
        address = self.advertise_address or self.bind_host
        if _HOST_PORT.fullmatch(address):
            return address
        return join_host_port(address.strip("[]"), port)


class ObserveFields(BaseModel):
    """Logs, metrics, traces, files."""

    log_level: LogLevel = Field(default="info", description="Least severe level that is logged.")
    log_format: LogFormat = Field(default="json", description="json: an object a line; console: for people.")
    metrics_port: int = Field(
        default=0, ge=-1, le=65535, description="Port of /metrics (Prometheus); 0 takes a free one, -1 turns it off."
    )
    trace_file: Path | None = Field(default=None, description="Write spans there, a JSON object a line.")
    trace_sample_ratio: float = Field(
        default=1.0, ge=0.0, le=1.0, description="Share of traces that begin here and are kept, if tracing is on."
    )
    run_dir: Path = Field(default=Path(".wavepp"), description="Directory for files that the process writes.")

    def tracing(self, **attributes: str) -> TracingOptions:
        """Options for `setup_telemetry`; `attributes` describe the process, such as stage="2"."""
        return TracingOptions(self.trace_sample_ratio, self.trace_file, attributes)


class CommonFields(ClusterFields, EtcdFields, BindFields, ObserveFields):
    """All of them: what a service has."""

    @property
    def listens(self) -> tuple[tuple[str, int], ...]:
        """Host and port of all that the process listens on."""
        return (self.bind_host, self.bind_port), (self.bind_host, self.metrics_port)
