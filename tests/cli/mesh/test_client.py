"""Calls to a mesh and batches of them, against a small server that behaves as it is told by the request id."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from wavepp.cli.mesh.batch import prefill_all
from wavepp.cli.mesh.client import CallError, MeshClient
from wavepp.infra.rpc_errors import PUSHBACK_KEY
from wavepp.v1 import prefill_pb2, prefill_pb2_grpc

WAIT_S = 30.0


class Servicer(prefill_pb2_grpc.PrefillServiceServicer):
    """slow: never answers. full: refuses. torn: ends without an answer. Others: as many tokens as wanted."""

    def __init__(self) -> None:
        self.running = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)
        self.together = threading.Barrier(3)

    def Prefill(  # noqa: N802 - the generated name
        self, request: prefill_pb2.PrefillRequest, context: grpc.ServicerContext
    ) -> prefill_pb2.PrefillResponse:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "not called here")

    def GetModelInfo(  # noqa: N802 - the generated name
        self, request: prefill_pb2.GetModelInfoRequest, context: grpc.ServicerContext
    ) -> prefill_pb2.GetModelInfoResponse:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "not called here")

    def PrefillStream(  # noqa: N802 - the generated name
        self, request: prefill_pb2.PrefillRequest, context: grpc.ServicerContext
    ) -> Iterator[prefill_pb2.PrefillEvent]:
        if request.request_id == "slow":
            over = threading.Event()
            context.add_callback(over.set)
            self.running.release()
            over.wait(WAIT_S)
            self.ended.release()
            return
        if request.request_id == "full":
            context.set_trailing_metadata(((PUSHBACK_KEY, "250"),))
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")
        if request.request_id == "torn":
            return
        if request.request_id == "together":
            self.together.wait(WAIT_S)
        for index in range(request.max_tokens):
            yield prefill_pb2.PrefillEvent(token=prefill_pb2.PrefillToken(index=index, token_id=index))
        yield prefill_pb2.PrefillEvent(done=prefill_pb2.PrefillResponse(request_id=request.request_id))


@pytest.fixture
def servicer() -> Servicer:
    return Servicer()


@pytest.fixture
def client(servicer: Servicer) -> Iterator[MeshClient]:
    server = grpc.server(ThreadPoolExecutor(8))
    prefill_pb2_grpc.add_PrefillServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with MeshClient(f"127.0.0.1:{port}") as opened:
            yield opened
    finally:
        server.stop(None).wait(WAIT_S)


def requests(*names: str) -> list[prefill_pb2.PrefillRequest]:
    return [prefill_pb2.PrefillRequest(request_id=name, max_tokens=2) for name in names]


def test_tokens_are_told_as_they_come_and_the_answer_comes_last(client: MeshClient) -> None:
    tokens: list[int] = []
    answer = client.prefill(requests("a")[0], WAIT_S, lambda token: tokens.append(token.token_id))
    assert tokens == [0, 1]
    assert answer.response.request_id == "a"
    assert 0 < answer.first_token_s <= answer.total_s


def test_a_refusal_has_its_code_its_reason_and_when_to_come_again(client: MeshClient) -> None:
    with pytest.raises(CallError, match=r"RESOURCE_EXHAUSTED: the queue is full \(try again in 250 ms\)") as caught:
        client.prefill(requests("full")[0], WAIT_S)
    assert caught.value.retry_after_ms == 250


def test_a_deadline_that_passes_is_said_with_its_length(client: MeshClient) -> None:
    with pytest.raises(CallError, match=r"DEADLINE_EXCEEDED: no answer within 0\.2 s, the deadline"):
        client.prefill(requests("slow")[0], 0.2)


def test_a_stream_that_ends_early_is_an_error(client: MeshClient) -> None:
    with pytest.raises(CallError, match="ended without an answer"):
        client.prefill(requests("torn")[0], WAIT_S)


def test_outcomes_come_in_the_order_of_the_requests_whatever_fails(client: MeshClient) -> None:
    done: list[int] = []
    outcomes = prefill_all(
        client, requests("a", "full", "b"), concurrency=2, deadline_s=WAIT_S, on_done=lambda: done.append(1)
    )
    assert [o.answer.response.request_id if o.answer else str(o.error).partition(":")[0] for o in outcomes] == [
        "a",
        "RESOURCE_EXHAUSTED",
        "b",
    ]
    assert len(done) == 3


def test_as_many_as_asked_run_together(client: MeshClient) -> None:
    outcomes = prefill_all(client, requests(*["together"] * 3), concurrency=3, deadline_s=WAIT_S)
    assert all(outcome.answer for outcome in outcomes)


def test_ctrl_c_cancels_what_runs_and_what_waits(client: MeshClient, servicer: Servicer) -> None:
    def interrupt() -> None:
        assert servicer.running.acquire(timeout=WAIT_S)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prefill_all(client, requests("a", "slow", "slow"), concurrency=2, deadline_s=WAIT_S * 2, on_done=interrupt)
    assert servicer.ended.acquire(timeout=WAIT_S), "the server saw the client go"
