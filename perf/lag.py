"""How long a router answers nobody while large prompts arrive, as text and as token ids.

The health service is asked all the time, by a process of its own: while the router's event loop is busy, or native
code keeps the interpreter, it does not answer. Emulated stages; the tokenizer is SmolLM2's, or --model's.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import grpc
import numpy as np
from perf.clusters import add_model, cluster, emulated, model_path, parser
from perf.machine import LoadWatch
from perf.report import Cell, Goal, finish, table

from wavepp.cli.mesh import probe
from wavepp.infra.rpc import CHANNEL_OPTIONS
from wavepp.v1 import prefill_pb2, prefill_pb2_grpc

GOAL_MS: Final = 1000.0
"""A tenth of the time to live of a router's lease: what has to be renewed is renewed in time."""
PROBE_PAUSE_S: Final = 0.002
PROBE_TIMEOUT_S: Final = 60.0
CALL_TIMEOUT_S: Final = 300.0
VOCABULARY: Final = 49_152
TOKENS_MAX: Final = 4 * 1024 * 1024
BLOCKS: Final = TOKENS_MAX // 64 + 1
SENTENCE: Final = "The router admits 42 requests, and each of them waits for its wave; "


@dataclass(frozen=True, slots=True)
class Case:
    """So many equal requests at once. `make` gives one, different for every number."""

    name: str
    at_once: int
    make: Callable[[int], prefill_pb2.PrefillRequest]


@dataclass(frozen=True, slots=True)
class Lag:
    """What was seen: the longest time for an answer, without load and during the case, and how the requests ended."""

    name: str
    seconds: float
    ended: str
    before_ms: float
    longest_ms: float

    def row(self) -> list[Cell]:
        """For the table."""
        return [self.name, self.ended, round(self.seconds, 1), round(self.before_ms), round(self.longest_ms)]


HEAD: Final = ("what arrives", "ended", "s", "no load, ms", "longest, ms")


def text(size: int) -> Callable[[int], prefill_pb2.PrefillRequest]:
    """Prompts of `size` bytes of English."""
    return lambda number: prefill_pb2.PrefillRequest(
        text=(f"{number} " + SENTENCE * (size // len(SENTENCE) + 1))[:size]
    )


def ids(count: int, *, packed: bool) -> Callable[[int], prefill_pb2.PrefillRequest]:
    """Prompts of token ids: as a list of numbers, or as bytes."""

    def make(number: int) -> prefill_pb2.PrefillRequest:
        drawn = np.random.default_rng(number).integers(0, VOCABULARY, count, dtype=np.uint32)
        if packed:
            return prefill_pb2.PrefillRequest(token_bytes=drawn.astype("<u4").tobytes())
        return prefill_pb2.PrefillRequest(token_ids=prefill_pb2.TokenIds(ids=drawn))

    return make


def generated(count: int) -> Callable[[int], prefill_pb2.PrefillRequest]:
    """A request that says to have so many tokens already."""
    empty = prefill_pb2.PrefillToken()
    return lambda _: prefill_pb2.PrefillRequest(text="a", generated=[empty] * count)


CASES: Final = (
    Case("text of 27 MB", 1, text(27_000_000)),
    Case("text of 5 MB", 1, text(5_000_000)),
    Case("4 texts of 600 kB", 4, text(600_000)),
    Case("4,000,000 token ids", 1, ids(4_000_000, packed=False)),
    Case("4,000,000 tokens as bytes", 1, ids(4_000_000, packed=True)),
    Case("12,000,000 token ids, refused", 1, ids(12_000_000, packed=False)),
    Case("10,000,000 generated tokens, refused", 1, generated(10_000_000)),
)


def ask_for_ever(port: int, answers: Connection) -> None:
    """Ask the health service; at each word from the other side, say what the longest answer since the last one took."""
    longest_s = 0.0
    while True:
        began = time.monotonic()
        probe.ask("127.0.0.1", port, timeout_s=PROBE_TIMEOUT_S)
        longest_s = max(longest_s, time.monotonic() - began)
        time.sleep(PROBE_PAUSE_S)
        if answers.poll():
            answers.recv()
            answers.send(1e3 * longest_s)
            longest_s = 0.0


def measure(case: Case, address: str, answers: Connection) -> Lag:
    """Send what the case says."""
    # Made before: this process' own work is not what is measured.
    requests = [case.make(number) for number in range(case.at_once)]
    longest_ms(answers)
    time.sleep(1.0)
    before_ms = longest_ms(answers)
    began = time.monotonic()
    with ThreadPoolExecutor(case.at_once) as threads:
        ends = list(threads.map(lambda request: prefill(address, request), requests))
    return Lag(case.name, time.monotonic() - began, ", ".join(sorted(set(ends))), before_ms, longest_ms(answers))


def longest_ms(answers: Connection) -> float:
    """Since this was asked last."""
    answers.send(None)
    if not answers.poll(2 * PROBE_TIMEOUT_S):
        raise TimeoutError("the process that asks the router does not answer")
    return float(answers.recv())


def prefill(address: str, request: prefill_pb2.PrefillRequest) -> str:
    """How it ended."""
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        try:
            prefill_pb2_grpc.PrefillServiceStub(channel).Prefill(request, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


def main() -> None:
    """The program."""
    arguments = _arguments()
    watch = LoadWatch()
    router = ("--tokenizer", str(model_path(arguments.model)))
    stage = ("--blocks", str(BLOCKS), "--wave-tokens-max", "16384")
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    lags: list[Lag] = []
    with tempfile.TemporaryDirectory() as home:
        model = emulated(Path(home), 2, 0.1, max_tokens=TOKENS_MAX, vocab_size=VOCABULARY)
        with cluster(model, 2, stage=stage, router=router) as started:
            port = int(started.address.rpartition(":")[2])
            asking = multiprocessing.get_context("spawn").Process(target=ask_for_ever, args=(port, theirs), daemon=True)
            asking.start()
            with suppress(KeyboardInterrupt):
                for case in CASES[-1:] if arguments.quick else CASES:
                    lags.append(measure(case, started.address, ours))
                    print(table(HEAD, [lags[-1].row()]).splitlines()[-1], flush=True)
            asking.kill()
    print()
    print(table(HEAD, [lag.row() for lag in lags]))
    goals = [Goal(f"longest without an answer, {lag.name}", lag.longest_ms, GOAL_MS, "ms") for lag in lags]
    finish(
        "lag", vars(arguments), {lag.name: dict(zip(HEAD, lag.row(), strict=True)) for lag in lags}, goals, watch.load()
    )


def _arguments() -> argparse.Namespace:
    made = parser(__doc__)
    add_model(made)
    return made.parse_args()


if __name__ == "__main__":
    main()
