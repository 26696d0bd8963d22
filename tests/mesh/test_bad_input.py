"""What a client must not send, or does at the wrong time: a status that says the limit, and nothing stays reserved."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest

from etcd_support import frozen
from mesh_support import (
    BLOCK,
    QUICK,
    VOCAB,
    MeshClient,
    check_answer,
    eventually,
    open_client,
    request,
    running_mesh,
    write_profile,
)
from wavepp.cli.local.cluster import ClusterSpec, LocalCluster
from wavepp.core.limits import MESSAGE_BYTES_MAX
from wavepp.infra.rpc_errors import retry_after_ms
from wavepp.v1 import prefill_pb2, types_pb2

CODE = grpc.StatusCode
MILLION = 1_000_000
PROMPT_MAX = 1_100_000
MODEL_MAX = 1_100_100
OUTPUT_MAX = 4096
SMALL_BLOCKS = 16_800
RUNNING_MAX = 2
QUEUE_MAX = 3
PREFILL = "/wavepp.v1.PrefillService/Prefill"


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two stages with room for a million tokens, slow steps, and a router that takes few requests."""
    run_dir = tmp_path_factory.mktemp("door")
    model = write_profile(
        run_dir / "profile.json", {"max_tokens": MODEL_MAX, "hidden_bytes": 16}, launch_ms=60.0, token_us=0.001
    )
    spec = ClusterSpec(
        run_dir,
        model,
        2,
        common_arguments=QUICK,
        stage_arguments=("--link", "socket", "--wave-tokens-max", "65536"),
        per_stage={0: ("--blocks", "20000"), 1: ("--blocks", str(SMALL_BLOCKS))},
        router_arguments=(
            *("--prompt-tokens-max", str(PROMPT_MAX), "--output-tokens-max", str(OUTPUT_MAX)),
            *("--running-requests-max", str(RUNNING_MAX), "--queue-requests-max", str(QUEUE_MAX)),
        ),
    )
    with running_mesh(spec, quiet_logs=True) as cluster:
        yield cluster


@pytest.fixture
async def client(door: LocalCluster) -> AsyncIterator[MeshClient]:
    """After each test nothing may be held, and the service must answer."""
    async with open_client(door.address) as found:
        yield found
        await found.quiet()
        await found.answer(list(range(100)))


async def refused(call: Any, code: grpc.StatusCode, *words: str) -> grpc.aio.AioRpcError:
    """The error with which the call ended; its details must have all `words`."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is code, caught.value.details()
    for word in words:
        assert word in (caught.value.details() or "")
    return caught.value


async def settled(future: asyncio.Future[Any]) -> bool:
    """Wait for it; whether it has a result."""
    await asyncio.wait({future})
    return future.exception() is None


def raw(client: MeshClient, message: bytes, **options: Any) -> Any:
    """A call with these bytes as its message."""
    return client.channel.unary_unary(PREFILL)(message, timeout=20, **options)


def message(**fields: Any) -> prefill_pb2.PrefillRequest:
    return prefill_pb2.PrefillRequest(**fields)


def some(**fields: Any) -> prefill_pb2.PrefillRequest:
    """A good prompt with something else that is wrong."""
    return request([1, 2, 3], **fields)


def ids(count: int) -> bytes:
    """So many tokens as token_bytes."""
    return bytes(4 * count)


def given(*tokens: tuple[int, int]) -> list[prefill_pb2.PrefillToken]:
    """Generated tokens, by index and id."""
    return [prefill_pb2.PrefillToken(index=index, token_id=token) for index, token in tokens]


INVALID = [
    (
        "nothing left",
        some(generated=given((0, 1), (1, 2)), max_tokens=2),
        ("2 tokens are generated", "max_tokens is 2"),
    ),
    ("a gap", some(generated=given((0, 1), (2, 2)), max_tokens=9), ("token 1 has index 2",)),
    ("generated id", some(generated=given((0, VOCAB)), max_tokens=9), (f"id {VOCAB}", f"0 to {VOCAB - 1}")),
    ("no prompt", message(), ("prompt is missing",)),
    ("no ids", request([]), ("prompt is empty", "at least one token")),
    ("no bytes", message(token_bytes=b""), ("prompt is empty", "at least one token")),
    ("text without a tokenizer", message(text="Once upon a time"), ("no tokenizer", "token_ids")),
    ("id beyond the vocabulary", request([5, VOCAB]), ("token 1 ", str(VOCAB), f"0 to {VOCAB - 1}")),
    ("id beyond the vocabulary, bytes", message(token_bytes=b"\xff" * 4), ("4294967295", f"0 to {VOCAB - 1}")),
    ("odd bytes", message(token_bytes=b"\0" * 7), ("7 bytes", "multiple of 4")),
    ("prompt over the configured limit", message(token_bytes=ids(PROMPT_MAX + 1)), (f"at most {PROMPT_MAX};",)),
    ("both over the model's limit", message(token_bytes=ids(PROMPT_MAX), max_tokens=101), (f"takes {MODEL_MAX} in",)),
    ("no output", some(max_tokens=0), ("max_tokens is 0", str(OUTPUT_MAX))),
    ("too much output", some(max_tokens=OUTPUT_MAX + 1), (str(OUTPUT_MAX + 1), str(OUTPUT_MAX))),
    ("request id too long", some(request_id="r" * 129), ("request_id", "129 bytes", "at most 128")),
    ("request id with control characters", some(request_id="a\nb"), ("request_id", "control")),
    ("salt too long", some(cache_salt="ä" * 129), ("cache_salt", "258 bytes", "at most 256")),
    ("model name too long", some(model="m" * 129), ("model", "129 bytes", "at most 128")),
    ("adapter name too long", some(adapter="a" * 129), ("adapter", "129 bytes", "at most 128")),
    ("temperature", some(sampling=types_pb2.Sampling(temperature=-1)), ("temperature", "0 (greedy) to 100")),
    ("temperature is no number", some(sampling=types_pb2.Sampling(temperature=float("nan"))), ("temperature",)),
    ("top_p", some(sampling=types_pb2.Sampling(top_p=1.5)), ("top_p", "to 1")),
    ("top_logprobs", some(sampling=types_pb2.Sampling(top_logprobs=21)), ("top_logprobs", "20")),
]


@pytest.mark.parametrize(("bad", "words"), [c[1:] for c in INVALID], ids=[c[0] for c in INVALID])
async def test_invalid_requests_say_what_is_wrong_and_the_limit(
    client: MeshClient, bad: prefill_pb2.PrefillRequest, words: tuple[str, ...]
) -> None:
    await refused(client.stub.Prefill(bad, timeout=20), CODE.INVALID_ARGUMENT, *words)
    await refused(client.stub.PrefillStream(bad, timeout=20).read(), CODE.INVALID_ARGUMENT, *words)


async def test_a_negative_id_on_the_wire_is_refused(client: MeshClient) -> None:
    minus_one = b"\xff" * 9 + b"\x01"
    packed = b"\x0a" + bytes([len(minus_one)]) + minus_one
    await refused(raw(client, b"\x1a" + bytes([len(packed)]) + packed), CODE.INVALID_ARGUMENT, f"0 to {VOCAB - 1}")


GARBAGE = {
    "no fields": b"\xff" * 100,
    "cut off": b"\x1a\x7fshort",
    "text that is no utf-8": b"\x0a\x02\xff\xfe",
    "noise": b"\x1a" + random.Random(1).randbytes(4096),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
async def test_bytes_that_are_no_message_are_refused(client: MeshClient, garbage: bytes) -> None:
    await refused(raw(client, garbage), CODE.INVALID_ARGUMENT, f"the {len(garbage)} bytes of the request are malformed")


async def test_a_message_over_the_size_limit_is_refused_with_the_limit(client: MeshClient) -> None:
    info = await client.stub.GetModelInfo(prefill_pb2.GetModelInfoRequest(), timeout=10)
    assert info.message_bytes_max == MESSAGE_BYTES_MAX
    call = client.stub.Prefill(message(token_bytes=bytes(MESSAGE_BYTES_MAX)), timeout=30)
    await refused(call, CODE.RESOURCE_EXHAUSTED, str(MESSAGE_BYTES_MAX))


async def test_a_request_that_never_fits_is_refused_at_once(client: MeshClient) -> None:
    never = message(token_bytes=ids(SMALL_BLOCKS * BLOCK + 2))
    words = (f"needs {SMALL_BLOCKS + 1} blocks", "stage 1", str(SMALL_BLOCKS))
    await refused(client.stub.Prefill(never, timeout=20), CODE.FAILED_PRECONDITION, *words)


@pytest.mark.parametrize(
    "bad", [some(model="gpt-17"), some(adapter="lora-1"), some(adapter="")], ids=["model", "adapter", "empty adapter"]
)
async def test_unknown_names_are_not_found(client: MeshClient, bad: prefill_pb2.PrefillRequest) -> None:
    name = bad.model or bad.adapter
    await refused(client.stub.Prefill(bad, timeout=20), CODE.NOT_FOUND, repr(name))


async def test_a_million_tokens_as_repeated_ids_are_served(client: MeshClient) -> None:
    prompt = [(7 * i + 1) % VOCAB for i in range(MILLION)]
    response = await client.answer(prompt, 2)
    assert response.computed_tokens == MILLION
    assert response.waves >= 16


async def test_an_answer_goes_on_after_the_tokens_that_an_earlier_stream_gave(client: MeshClient) -> None:
    prompt, budget = list(range(100, 300)), 8
    call = client.stream(prompt, max_tokens=budget)
    first = [(await call.read()).token for _ in range(3)]
    call.cancel()
    rest = client.stream(prompt, max_tokens=budget, generated=first)
    events = [event async for event in rest]
    assert [event.token.index for event in events[:-1]] == list(range(3, budget))
    check_answer(events[-1].done, prompt, budget)
    assert events[-1].done.first_token.logprob == first[0].logprob
    assert [t.token_id for t in first] + [e.token.token_id for e in events[:-1]] == list(events[-1].done.token_ids)


async def test_a_deadline_that_has_passed(client: MeshClient) -> None:
    await refused(client.prefill([1, 2, 3], timeout=1e-6), CODE.DEADLINE_EXCEEDED)
    # Written by hand: a client's own clock would not even send it.
    await refused(client.stub.Prefill(some(), metadata=(("grpc-timeout", "1n"),)), CODE.DEADLINE_EXCEEDED)


async def test_a_deadline_that_passes_while_the_request_runs(client: MeshClient) -> None:
    call = client.stream([1, 2, 3], max_tokens=OUTPUT_MAX, timeout=1.0)
    indices = []
    while (reading := asyncio.ensure_future(call.read())) and await settled(reading):
        indices.append(reading.result().token.index)
    await refused(reading, CODE.DEADLINE_EXCEEDED)
    assert indices == list(range(len(indices)))
    assert indices


# ---- while others run --------------------------------------------------------------------------------------


class Busy:
    """As many running requests as the router admits; stopped at the end."""

    def __init__(self, client: MeshClient) -> None:
        self._client = client
        self._calls: list[Any] = []

    async def __aenter__(self) -> Busy:
        for i in range(RUNNING_MAX):
            call = self._client.stream([7, i], max_tokens=OUTPUT_MAX, request_id=f"busy-{i}")
            assert (await call.read()).token.index == 0
            self._calls.append(call)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for call in self._calls:
            call.cancel()

    async def next_tokens(self) -> None:
        """All of them go on."""
        for call in self._calls:
            assert (await call.read()).WhichOneof("event") == "token"


async def queued(client: MeshClient, count: int) -> None:
    await eventually(client.status, lambda s: s.router.queued == count)


async def test_an_id_that_is_in_flight_already_exists(client: MeshClient) -> None:
    async with Busy(client) as busy:
        await refused(client.prefill([1], request_id="busy-0"), CODE.ALREADY_EXISTS, "'busy-0'", "in flight")
        await busy.next_tokens()
    await client.quiet()
    await client.answer([1], request_id="busy-0")


async def test_a_full_queue_says_when_to_come_back(client: MeshClient) -> None:
    async with Busy(client) as busy:
        waiting = [client.prefill([1, i]) for i in range(QUEUE_MAX)]
        await queued(client, QUEUE_MAX)
        error = await refused(client.prefill([2]), CODE.RESOURCE_EXHAUSTED, f"holds {QUEUE_MAX} requests")
        assert (retry_after_ms(error) or 0) >= 100
        await busy.next_tokens()
    for i, call in enumerate(waiting):
        check_answer(await call, [1, i], 1)


async def test_a_client_gone_while_queued(client: MeshClient) -> None:
    async with Busy(client) as busy:
        calls = [client.prefill([3, i]) for i in range(QUEUE_MAX)]
        await queued(client, QUEUE_MAX)
        calls[1].cancel()
        await queued(client, QUEUE_MAX - 1)
        await busy.next_tokens()
    for i in (0, 2):
        check_answer(await calls[i], [3, i], 1)


async def test_a_deadline_that_passes_while_queued(client: MeshClient) -> None:
    async with Busy(client) as busy:
        await refused(client.prefill([4], timeout=0.3), CODE.DEADLINE_EXCEEDED)
        await queued(client, 0)
        await busy.next_tokens()


async def test_a_client_gone_while_it_is_admitted(door: LocalCluster, client: MeshClient) -> None:
    before = (await client.status()).router
    child = door.stages[1].child
    assert child is not None
    # The round cannot end while a stage does not answer.
    with frozen(child.pid):
        call = client.prefill(list(range(1000)), timeout=30)
        await eventually(client.status, lambda s: s.router.admitting == 1)
        call.cancel()
        # On the same connection, so when this is answered the router has heard of the end of the call.
        await client.stub.GetModelInfo(prefill_pb2.GetModelInfoRequest(), timeout=10)
    after = (await client.quiet()).router
    assert (after.requests_failed, after.requests_done) == (before.requests_failed + 1, before.requests_done)


async def test_a_client_gone_between_its_grant_and_its_first_wave(client: MeshClient) -> None:
    # A step takes 60 ms and a grant some, so the first wave with it mostly has not gone out yet.
    running = client.stream([5], max_tokens=OUTPUT_MAX)
    await running.read()
    for i in range(5):
        call = client.prefill([6, i])
        await eventually(client.status, lambda s: s.router.running == 2)
        call.cancel()
        await eventually(client.status, lambda s: s.router.running == 1)
    running.cancel()


async def test_a_client_gone_while_it_runs_frees_its_place_at_once(client: MeshClient) -> None:
    async with Busy(client):
        waiting = client.prefill([8])
        await queued(client, 1)
    # Both ran for OUTPUT_MAX steps of 60 ms, had they gone on.
    check_answer(await waiting, [8], 1)
