"""The errors that a client can get, as types, and the gRPC status of each."""

from __future__ import annotations

from typing import Final

import grpc

from wavepp.core.errors import WaveppError
from wavepp.core.router.admission_queue import QueueFullError
from wavepp.core.router.dispatcher import DuplicateRequestError
from wavepp.core.router.requests import Failure, FailureKind
from wavepp.infra.rpc_errors import ErrorStatus, ErrorTable


class UnknownNameError(WaveppError):
    """There is no such model or adapter here."""


class NeverFitsError(WaveppError):
    """The request is too large for the stages' pools, now and later."""


class NotServingError(WaveppError):
    """This router cannot take requests now; another one may, or this one later."""


class MovedError(WaveppError):
    """Another router leads now, and takes the request on."""


class NotLeadingError(WaveppError):
    """The router that sent this call on was wrong: another one leads, or none."""


class DeadlineError(WaveppError):
    """The deadline has passed."""


class StoppedError(WaveppError):
    """The request was cancelled."""


class UnreadError(WaveppError):
    """The client does not read its answer."""


class PipelineError(WaveppError):
    """The pipeline broke more often than a request is tried."""


class RequestFailedError(WaveppError):
    """A stage could not compute this request."""


NOT_LEADING: Final = grpc.StatusCode.ABORTED
"""Between routers only: clients never see it."""

STATUS: Final[ErrorTable] = {
    UnknownNameError: ErrorStatus(grpc.StatusCode.NOT_FOUND),
    NeverFitsError: ErrorStatus(grpc.StatusCode.FAILED_PRECONDITION),
    NotServingError: ErrorStatus(grpc.StatusCode.UNAVAILABLE, 500),
    MovedError: ErrorStatus(grpc.StatusCode.UNAVAILABLE, 500),
    NotLeadingError: ErrorStatus(NOT_LEADING),
    DeadlineError: ErrorStatus(grpc.StatusCode.DEADLINE_EXCEEDED),
    UnreadError: ErrorStatus(grpc.StatusCode.DEADLINE_EXCEEDED),
    StoppedError: ErrorStatus(grpc.StatusCode.CANCELLED),
    PipelineError: ErrorStatus(grpc.StatusCode.UNAVAILABLE, 1000),
    RequestFailedError: ErrorStatus(grpc.StatusCode.INTERNAL),
    DuplicateRequestError: ErrorStatus(grpc.StatusCode.ALREADY_EXISTS),
    # Its own `retry_after_ms` goes to the client.
    QueueFullError: ErrorStatus(grpc.StatusCode.RESOURCE_EXHAUSTED, 1000),
}

_OF_KIND: Final[dict[FailureKind, type[WaveppError]]] = {
    FailureKind.CANCELLED: StoppedError,
    FailureKind.DEADLINE: DeadlineError,
    FailureKind.NEVER_FITS: NeverFitsError,
    FailureKind.PIPELINE: PipelineError,
    FailureKind.INTERNAL: RequestFailedError,
    FailureKind.SHUTDOWN: NotServingError,
    FailureKind.MOVED: MovedError,
}


def error_of(failure: Failure) -> WaveppError:
    """The error that a client gets for a failure."""
    return _OF_KIND[failure.kind](failure.message)
