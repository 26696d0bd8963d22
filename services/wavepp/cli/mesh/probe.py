"""Asks a process whether it is ready, for the probes of containers, which ask every few seconds.

    python -IS probe.py HOST PORT [SERVICE]

One question to the gRPC health service; exit code 0 means SERVING, 1 anything else, and one line says what. People use
`wavepp health`; but a client of the gRPC library costs half a second of CPU time and more before it has asked anything,
so this one writes the few frames of the question by itself. It runs as a file, needs no package, and imports nothing
that the interpreter has not loaded already but `_socket`: `socket` alone would double its cost.
"""

import sys
import time
from _socket import SOCK_STREAM, getaddrinfo, socket

TIMEOUT_S = 5.0
"""For all of it: below the time after which docker gives a probe up."""

_METHOD = b"/grpc.health.v1.Health/Check"
_STATUSES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")

# HTTP/2 (RFC 9113) and, for a literal header field that no table keeps, HPACK (RFC 7541, section 6.2.2).
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _GOAWAY = 0, 1, 3, 4, 7
_END_STREAM, _END_HEADERS = 1, 4
_STREAM = 1
_HEAD_BYTES = 9
_FRAME_BYTES_MAX = 16_384
"""Unless a client allows more. What is no HTTP/2 mostly looks like a larger frame."""
_GRPC_PREFIX_BYTES = 5
_NAME_BYTES_MAX = 100


class ProbeError(Exception):
    """There is no answer; the message says why, in words that follow the address."""


def ask(host: str, port: int, service: str = "", timeout_s: float = TIMEOUT_S) -> str:
    """What the health service at host:port says of `service` ("" is the whole process), by gRPC's name of the status.

    Connects directly, whatever proxy the environment names. Raises ProbeError, within `timeout_s` but for the time that
    resolving a name takes.
    """
    if len(service.encode()) > _NAME_BYTES_MAX:
        raise ProbeError(f"cannot be asked for a service of more than {_NAME_BYTES_MAX} bytes")
    ends = time.monotonic() + timeout_s
    try:
        connection = _connect(host, port, ends)
        try:
            connection.sendall(_question(host, port, service))
            return _answer(connection, ends)
        finally:
            connection.close()
    except TimeoutError as error:
        raise ProbeError(f"gives no answer within {timeout_s:g} s") from error
    except OSError as error:
        raise ProbeError(f"gives no answer: {error.strerror or error}") from error


def _connect(host: str, port: int, ends: float) -> socket:
    """To the first of the host's addresses that takes the connection. Raises OSError."""
    failed: OSError | None = None
    # A str would be encoded by the idna codec, whose import costs as much as all the rest.
    name = host.encode() if host.isascii() else host
    for family, kind, protocol, _, address in getaddrinfo(name or None, port, type=SOCK_STREAM):
        connection = socket(family, kind, protocol)
        try:
            connection.settimeout(_left_s(ends))
            connection.connect(address)
        except OSError as error:
            connection.close()
            failed = error
        else:
            return connection
    raise failed or OSError("no address")


def _left_s(ends: float) -> float:
    left_s = ends - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _question(host: str, port: int, service: str) -> bytes:
    """All that a client sends: that it speaks HTTP/2, its (default) settings, and the call."""
    authority = f"[{host}]:{port}" if ":" in host else f"{host or 'localhost'}:{port}"
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", _METHOD),
        (b":authority", authority.encode()[:_NAME_BYTES_MAX]),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
    headers = b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields)
    name = service.encode()
    request = bytes([10, len(name)]) + name if name else b""  # field 1, a string
    message = b"\0" + len(request).to_bytes(4, "big") + request
    return (
        _PREFACE
        + _frame(_SETTINGS, 0, 0, b"")
        + _frame(_HEADERS, _END_HEADERS, _STREAM, headers)
        + _frame(_DATA, _END_STREAM, _STREAM, message)
    )


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _answer(connection: socket, ends: float) -> str:
    """The status in the response, once its stream has ended. Raises OSError, ProbeError."""
    message = b""
    while True:
        head = _read(connection, _HEAD_BYTES, ends)
        length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        if length > _FRAME_BYTES_MAX or len(message) > _FRAME_BYTES_MAX:
            raise ProbeError("does not speak gRPC")
        payload = _read(connection, length, ends)
        if kind in (_GOAWAY, _RST_STREAM):
            raise ProbeError("refuses the call")
        if kind == _DATA:
            message += payload
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            break
    if not message:
        raise ProbeError("has no health service, or does not know what it is asked for")
    # Field 1 is the status; a message leaves out 0.
    status = message[_GRPC_PREFIX_BYTES + 1 :]
    return _STATUSES[status[0] if status and status[0] < len(_STATUSES) else 0]


def _read(connection: socket, count: int, ends: float) -> bytes:
    """Exactly `count` bytes, by `ends`. Raises OSError."""
    found = b""
    while len(found) < count:
        connection.settimeout(_left_s(ends))
        some = connection.recv(count - len(found))
        if not some:
            raise OSError("the connection was closed")
        found += some
    return found


def main(arguments: list[str]) -> int:
    """The program; returns its exit code. Not 2 for wrong arguments: docker keeps that for itself."""
    if len(arguments) not in (2, 3) or not arguments[1].isdecimal():
        print("usage: probe.py HOST PORT [SERVICE]")
        return 1
    host, port = arguments[0].strip("[]"), int(arguments[1])
    try:
        said = ask(host, port, arguments[2] if len(arguments) == 3 else "")
    except ProbeError as error:
        print(f"{host}:{port} {error}")
        return 1
    print(f"{host}:{port} says {said}")
    return 0 if said == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
