"""Requests and the clients that send them: closed loops against a router."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc
import numpy as np

from wavepp.infra.rpc import CHANNEL_OPTIONS
from wavepp.v1 import prefill_pb2, prefill_pb2_grpc

REQUEST_TIMEOUT_S = 300.0


class Prompts:
    """Prompts of random tokens, as token bytes. The same seed makes the same prompts."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        self._vocab_size = vocab_size
        self._random = np.random.default_rng(seed)

    def fresh(self, tokens: int) -> bytes:
        """Tokens that nobody has seen before."""
        return self._random.integers(0, self._vocab_size, tokens, dtype=np.uint32).astype("<u4").tobytes()

    def cached(self, prefixes: list[bytes], tokens: int) -> bytes:
        """One of `prefixes` with fresh tokens behind it, `tokens` in all."""
        prefix = prefixes[int(self._random.integers(len(prefixes)))]
        return prefix + self.fresh(tokens - len(prefix) // 4)


@dataclass(frozen=True, slots=True)
class Answered:
    """A request as its client saw it."""

    latency_s: float
    response: prefill_pb2.PrefillResponse


def request_of(prompt: bytes) -> prefill_pb2.PrefillRequest:
    """A request for the first token after the prompt."""
    return prefill_pb2.PrefillRequest(token_bytes=prompt, max_tokens=1)


def for_seconds(make: Callable[[], bytes], seconds: float) -> Iterator[bytes]:
    """Prompts for so long, counted from the first."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        yield make()


async def closed_loop(channel: grpc.aio.Channel, clients: int, prompts: Iterator[bytes]) -> list[Answered]:
    """Every client sends, waits for the answer, and sends the next one, until the prompts run out.

    Raises grpc.aio.AioRpcError when a request fails: then there is nothing to measure.
    """
    stub = prefill_pb2_grpc.PrefillServiceStub(channel)
    answered: list[Answered] = []

    async def client() -> None:
        for prompt in prompts:
            message = request_of(prompt)
            began = time.perf_counter()
            response = await stub.Prefill(message, timeout=REQUEST_TIMEOUT_S)
            answered.append(Answered(time.perf_counter() - began, response))

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return answered


def run_closed_loop(address: str, clients: int, prompts: Iterator[bytes]) -> list[Answered]:
    """`closed_loop` over a channel of its own; blocks."""

    async def run() -> list[Answered]:
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            return await closed_loop(channel, clients, prompts)

    return asyncio.run(run())
