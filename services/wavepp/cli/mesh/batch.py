"""Several prefill requests at once, from threads, with each one's answer or error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final

from wavepp.cli.mesh.client import Answer, CallError, MeshClient
from wavepp.v1 import prefill_pb2

CONCURRENCY_MAX: Final = 512
_WAIT_S: Final = 0.2
"""Between looks: Python handles Ctrl-C only when the main thread runs."""


@dataclass(frozen=True, slots=True)
class PromptOutcome:
    """Of one request: an answer, or the error in its place."""

    answer: Answer | None = None
    error: CallError | None = None


def prefill_all(
    client: MeshClient,
    requests: Sequence[prefill_pb2.PrefillRequest],
    *,
    concurrency: int,
    deadline_s: float,
    on_token: Callable[[], None] = lambda: None,
    on_done: Callable[[], None] = lambda: None,
) -> list[PromptOutcome]:
    """Send all, at most `concurrency` at a time; the outcomes in the order of the requests.

    `on_token` is called from several threads, `on_done` from this one. An exception in this thread (Ctrl-C) cancels
    what runs before it goes on.
    """

    def one(request: prefill_pb2.PrefillRequest) -> PromptOutcome:
        try:
            return PromptOutcome(answer=client.prefill(request, deadline_s, lambda _token: on_token()))
        except CallError as error:
            return PromptOutcome(error=error)

    with ThreadPoolExecutor(max(1, min(concurrency, len(requests), CONCURRENCY_MAX))) as pool:
        futures = [pool.submit(one, request) for request in requests]
        try:
            for _ in _as_completed(futures):
                on_done()
        except BaseException:
            client.cancel_all()
            for future in futures:
                future.cancel()
            raise
        return [future.result() for future in futures]


def _as_completed(futures: Iterable[Future[PromptOutcome]]) -> Iterable[Future[PromptOutcome]]:
    left = set(futures)
    while left:
        done, left = wait(left, timeout=_WAIT_S, return_when=FIRST_COMPLETED)
        yield from done
