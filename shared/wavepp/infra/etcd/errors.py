"""What can go wrong with etcd, sorted by what the caller may conclude: nothing happened, or nobody knows."""

from __future__ import annotations

import grpc
from etcd3aio import EtcdError as LibraryError

from wavepp.core.errors import WaveppError

# gRPC says so, and only so, when no connection existed and the request never left this process. A text that is
# not known here counts as "perhaps sent", which is the safe side.
_NEVER_SENT = (
    "failed to connect to all addresses",
    "connections to all backends failing",
    "errors resolving",
    "dns resolution failed",
    "empty address list",
)

_REFUSED = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


class EtcdError(WaveppError):
    """Base of everything that this package raises about etcd."""


class EtcdUnavailableError(EtcdError):
    """etcd could not be asked, and nothing was changed by the call. Try again later."""


class EtcdNotSentError(EtcdUnavailableError):
    """The request did not leave this process: there was no connection. Another endpoint may be tried at once."""


class EtcdAmbiguousError(EtcdError):
    """A write whose outcome is unknown: it may have been applied, or may still be. Read back before acting."""


class EtcdRequestError(EtcdError):
    """etcd refused the request itself; asking again without a change gives the same answer."""

    def __init__(self, message: str, code: grpc.StatusCode | None = None) -> None:
        super().__init__(message)
        self.code = code


class EtcdLeaseNotFoundError(EtcdRequestError):
    """The etcd lease has expired or was revoked."""


class EtcdReadOnlyError(EtcdRequestError):
    """etcd has run out of its space quota and takes no writes until it is compacted and disarmed."""


class EtcdCompactedError(EtcdRequestError):
    """The revision asked for has been compacted away; list again."""


class EtcdDataError(EtcdError):
    """A value in etcd is not what this program writes there."""


class FencedError(EtcdError):
    """A fence key is not the one that the caller holds: somebody else leads now. Nothing was changed."""

    def __init__(self, key: str, expected: int, actual: int) -> None:
        now = "is gone" if actual == 0 else f"has create revision {actual}"
        super().__init__(
            f"fence {key} {now}, expected create revision {expected}; "
            "another process leads now, this one must stop writing"
        )
        self.key = key
        self.expected = expected
        self.actual = actual


class SessionLostError(EtcdError):
    """This process' etcd lease is lost, and with it every key and leadership that hung on it."""


def classify(error: LibraryError | grpc.aio.AioRpcError | TimeoutError, what: str, *, write: bool) -> EtcdError:
    """The typed error for `error`, which ended the call `what`. A write that may have gone out is ambiguous."""
    if isinstance(error, TimeoutError):
        return _unknown(f"etcd did not answer {what} within its time limit", write)
    rpc = error if isinstance(error, grpc.aio.AioRpcError) else error.__cause__
    if not isinstance(rpc, grpc.aio.AioRpcError):
        return _unknown(f"{what}: {error}", write)
    code, details = rpc.code(), rpc.details() or ""
    message = f"etcd {what}: {code.name} ({details})"
    lowered = details.lower()
    if code is grpc.StatusCode.UNAVAILABLE and any(text in lowered for text in _NEVER_SENT):
        return EtcdNotSentError(message)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "etcdserver:" in lowered:
        if "database space exceeded" in lowered:
            return EtcdReadOnlyError(message, code)
        return EtcdUnavailableError(message)  # "too many requests": refused before it was proposed
    if code in _REFUSED:
        if "lease not found" in lowered:
            return EtcdLeaseNotFoundError(message, code)
        if "compacted" in lowered:
            return EtcdCompactedError(message, code)
        return EtcdRequestError(message, code)
    return _unknown(message, write)


def _unknown(message: str, write: bool) -> EtcdError:
    if write:
        return EtcdAmbiguousError(f"{message}; the write may or may not have been applied, read it back")
    return EtcdUnavailableError(message)
