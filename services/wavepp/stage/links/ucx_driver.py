"""Drives one UCX worker from the event loop: no threads, no busy polling.

UCX's event descriptor is a reader of the loop; before the loop sleeps, the worker is armed. Everything happens
on the loop's thread. Callbacks of UCX itself (a connection came in, an endpoint closed) run inside `progress`,
where UCX must not be called again, so they only put what follows on a list that is worked off afterwards.

Only UCX's stream interface is used. Tagged messages belong to the worker, not to a connection: one that is half
here when its sender dies is never completed, keeps its buffer, and makes the worker's destructor spin for ever.
What a stream holds goes away with its endpoint.

The module `ucxx._lib.libucxx` is what ucxx's own benchmarks use; the dependency is pinned to one minor version.
UCX must not be initialised before a fork: start processes with spawn or subprocess.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from wavepp.stage.links.errors import TransportUnavailableError

if TYPE_CHECKING:
    from typing_extensions import Buffer

UcxProfile = Literal["tcp", "shm"]

_TCP: Final = {
    # Only transports that report a dead peer; listeners' endpoints would use no others anyway.
    "TLS": "tcp",
    # Over TCP, rendezvous costs a round trip and small fragments. Without it the receiver buffers what it did
    # not ask for yet, and the links' credits bound how much that is.
    "RNDV_THRESH": "inf",
    "TCP_TX_SEG_SIZE": "256k",
    "TCP_RX_SEG_SIZE": "256k",
}
PROFILES: Final[dict[UcxProfile, dict[str, str]]] = {
    "tcp": _TCP,
    # Same host only (both ends must choose it). Faster than TCP up to about 1 MB if cores are free; larger frames
    # go in small fragments, and take several times as long as over TCP when both ends do not run at the same
    # time. Measure before you choose it. POSIX_ERROR_HANDLING keeps the detection of dead peers.
    "shm": {"TLS": "tcp,posix", "POSIX_ERROR_HANDLING": "y", "RNDV_THRESH": "inf"},
}

_STEPS_PER_TURN: Final = 32
"""Calls of `progress_once` before other work of the loop gets its turn; each moves up to one 256 KB segment."""

_ENVIRONMENT: Final = {
    "UCX_WARN_UNUSED_ENV_VARS": "n",
    # Lost connections are reported as errors by us; ucxx would print each to stdout as well.
    "UCXX_LOG_LEVEL": "fatal",
}


def load_ucxx() -> tuple[Any, Any]:
    """The modules (libucxx, arr). Raises TransportUnavailableError. The only place that imports ucxx.

    ucxx reads its settings from the environment at import; what a user set there wins.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from ucxx._lib import arr, libucxx
    except (ImportError, OSError) as error:
        raise TransportUnavailableError(
            f"ucxx cannot be loaded ({error}): install the `stage` extra (pip install 'wavepp[stage]'), "
            "or use --link socket"
        ) from error
    return libucxx, arr


Done = Callable[[Exception | None], None]
"""Called on the loop when UCX is done with a request, with its error."""


@dataclass(slots=True)
class _Posted:
    request: Any
    keep: object  # the memory that UCX reads or writes
    owner: object
    done: Done


class UcxDriver:
    """One UCX context and worker. Made inside a running loop and used only there."""

    def __init__(self, profile: UcxProfile, devices: Sequence[str] = ()) -> None:
        """`devices` are the only ones whose addresses UCX listens on and connects from; none stands for all.

        Raises TransportUnavailableError.
        """
        self._ucx, arr = load_ucxx()
        self._array = arr.Array
        self._loop = asyncio.get_running_loop()
        features = (self._ucx.Feature.STREAM, self._ucx.Feature.WAKEUP)
        settings = dict(PROFILES[profile])
        # What a user set wins.
        self.devices = () if "UCX_NET_DEVICES" in os.environ else tuple(devices)
        if self.devices:
            settings["NET_DEVICES"] = ",".join(self.devices)
        try:
            self._context = self._ucx.UCXContext(settings, feature_flags=features)
        except self._ucx.UCXError as error:
            raise TransportUnavailableError(
                f"UCX cannot use {', '.join(self.devices) or 'any device'} ({error}): give link_host an address "
                "of a device that is up, name one in UCX_NET_DEVICES, or use --link socket"
            ) from error
        self._worker = self._ucx.UCXWorker(self._context, enable_delayed_submission=False, enable_python_future=False)
        self._worker.init_blocking_progress_mode()
        self._descriptor = self._worker.epoll_file_descriptor
        self._posted: list[_Posted] = []
        self._finished: deque[_Posted] = deque()
        self._deferred: deque[Callable[[], None]] = deque()
        self._kicked = False
        self._closed = False
        self._loop.add_reader(self._descriptor, self._turn)

    # --- connections ---------------------------------------------------------------------------------------

    def listen(self, arrived: Callable[[Any], None]) -> Any:
        """A UCX listener on all addresses and any free port; `arrived(endpoint)` is called on the loop. Keep what is
        returned.

        Raises UCXError.
        """

        def callback(endpoint: Any) -> None:
            self._deferred.append(lambda: arrived(endpoint))

        listener = self._ucx.UCXListener.create(
            worker=self._worker, port=0, cb_func=callback, cb_args=(), deliver_endpoint=True
        )
        self.kick()
        return listener

    def connect(self, host: str, port: int) -> Any:
        """An endpoint to `host` (a numeric address). Whether anybody is there shows later. Raises UCXError."""
        endpoint = self._ucx.UCXEndpoint.create(self._worker, host, port, True)
        self.kick()
        return endpoint

    def on_close(self, endpoint: Any, closed: Callable[[], None]) -> None:
        """Call `closed` on the loop when UCX gives up the endpoint, for whatever reason."""
        endpoint.set_close_callback(self._deferred.append, (closed,), {})
        if not endpoint.alive:
            self._deferred.append(closed)
            self.kick()

    def close_endpoint(self, endpoint: Any, owner: object) -> None:
        """Close at once, without a flush, and forget the owner's requests; their memory is not touched again."""
        endpoint.close_blocking(period=10**9, max_attempts=1)
        endpoint.remove_close_callback()
        self._posted = [posted for posted in self._posted if posted.owner is not owner]
        self._finished = deque(posted for posted in self._finished if posted.owner is not owner)
        self.kick()

    # --- messages ------------------------------------------------------------------------------------------

    def send(self, endpoint: Any, data: Buffer, owner: object, done: Done) -> bool:
        """Append to the endpoint's stream; True when UCX is done with `data` already: `done` is not called then.

        Raises UCXError.
        """
        array = self._as_array(data)
        request = endpoint.stream_send(array)
        if request.completed and self._failure_of(request) is None:
            self.kick()
            return True
        self._post(request, array, owner, done)
        return False

    def receive(self, endpoint: Any, into: Buffer, owner: object, done: Done) -> None:
        """Fill `into` from the endpoint's stream. Raises UCXError."""
        array = self._as_array(into)
        self._post(endpoint.stream_recv(array), array, owner, done)

    def error_of(self, endpoint: Any) -> str:
        """What UCX says about a dead endpoint."""
        try:
            endpoint.raise_on_error()
        except self._ucx.UCXError as error:
            return str(error)
        return "the endpoint was closed"

    @property
    def ucx_error(self) -> type[Exception]:
        """Base class of UCX's errors."""
        error: type[Exception] = self._ucx.UCXError
        return error

    # --- the loop ------------------------------------------------------------------------------------------

    def kick(self) -> None:
        """Have the worker looked at soon; needed after every operation that was posted on it."""
        if not self._kicked and not self._closed:
            self._kicked = True
            self._loop.call_soon(self._turn)

    def close(self) -> None:
        """Stop, and let go of the worker. Close all endpoints before, and drop listeners. Idempotent.

        The worker must not be left to the garbage collector: that may run in a child process between fork and
        exec, and there the destructor would take this process's descriptors out of the epoll set that both
        share. (When an endpoint was closed under a pending receive, ucxx never destroys the worker at all:
        one worker's descriptors stay until the process ends. Endpoints do not leak theirs.)
        """
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._descriptor)
        self._posted.clear()
        self._finished.clear()
        self._deferred.clear()
        self._worker = self._context = None

    def _turn(self) -> None:
        self._kicked = False
        armed = False
        try:
            for _ in range(_STEPS_PER_TURN):
                if self._closed:
                    return
                moved = self._worker.progress_once()
                if not self._settle() and not moved and self._worker.arm():
                    armed = True
                    return
        finally:
            # Not armed: the descriptor would not wake us. Let the loop serve others, then go on.
            if not armed:
                self.kick()

    def _settle(self) -> bool:
        """Run what completed; False when nothing did."""
        if self._posted:
            still: list[_Posted] = []
            for posted in self._posted:
                (self._finished if posted.request.completed else still).append(posted)
            self._posted = still
        any_done = bool(self._finished or self._deferred)
        # Completed messages first: what a peer sent before it closed counts.
        while self._finished:
            posted = self._finished.popleft()
            posted.done(self._failure_of(posted.request))
        while self._deferred:
            self._deferred.popleft()()
        return any_done

    def _post(self, request: Any, keep: object, owner: object, done: Done) -> None:
        self._posted.append(_Posted(request, keep, owner, done))
        self.kick()

    def _as_array(self, data: Buffer) -> Any:
        return self._array(np.frombuffer(memoryview(data), dtype=np.uint8))

    def _failure_of(self, request: Any) -> Exception | None:
        try:
            request.check_error()
        except self._ucx.UCXError as error:
            return error  # type: ignore[no-any-return]
        return None
