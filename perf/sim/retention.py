"""Prefix retention: documents that are asked about again and again, and a cache that does not hold all of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from wavepp.core.errors import InvalidInputError
from wavepp.sim.clock import VirtualClock
from wavepp.sim.keyed import KeyedAsk, chain_keys
from wavepp.sim.parallel import run_all
from wavepp.sim.results import Finished
from wavepp.sim.seeds import Seeds, by_seeds
from wavepp.sim.timed_mesh import TimedMesh, TimedSetup
from wavepp.sim.trace_replay import ReplayResult, oracle_reuse, result_of

_A = TypeVar("_A")

GOOD_HIT = 0.9
"""A request is a good hit when it reuses so much of its document's prefix."""


@dataclass(frozen=True, slots=True)
class Retention:
    """`documents` prefixes of `prefix_tokens` each; every request adds `question_tokens` of its own to one of them.

    The i-th document (from 1) is asked for in proportion to 1 / i^`skew`, like Zipf's law.
    """

    documents: int = 64
    prefix_tokens: int = 131_072
    question_tokens: int = 4_096
    skew: float = 1.0

    @property
    def tokens(self) -> int:
        """Of all prefixes together."""
        return self.documents * self.prefix_tokens

    def asks(self, count: int, block_tokens: int, seed: int) -> list[KeyedAsk]:
        """`kind` names the document."""
        if min(self.documents, self.prefix_tokens // block_tokens, self.question_tokens) < 1:
            raise InvalidInputError(f"{self}: give at least one document, a block of prefix and a token of question")
        draw = random.Random(seed)
        weights = list(accumulate(1.0 / rank**self.skew for rank in range(1, self.documents + 1)))
        picks = draw.choices(range(self.documents), cum_weights=weights, k=count)
        return [self._ask(document, number, block_tokens) for number, document in enumerate(picks)]

    def _ask(self, document: int, number: int, block_tokens: int) -> KeyedAsk:
        prompt_tokens = self.prefix_tokens + self.question_tokens
        shared, blocks = self.prefix_tokens // block_tokens, prompt_tokens // block_tokens
        # Documents and questions count from different places, so that no two blocks are equal by chance.
        own = (self.documents + number) * blocks
        ids = [*range(document * blocks, document * blocks + shared), *range(own, own + blocks - shared)]
        return KeyedAsk(prompt_tokens, chain_keys(ids), number, f"document {document}")


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """`again`: requests for a document that was asked for before. `good`, `oracle_good`: good hits among them, here
    and in one cache of a stage's size with exact LRU, in order of arrival.
    """

    replay: ReplayResult
    again: int
    good: int
    oracle_good: int

    @property
    def rate(self) -> float:
        """Good hits among the requests that could be."""
        return self.good / max(1, self.again)

    @property
    def oracle_rate(self) -> float:
        """The same of the oracle."""
        return self.oracle_good / max(1, self.again)

    @property
    def of_oracle(self) -> float:
        """Good hits over the oracle's; 1 where there was nothing to hit."""
        return self.good / self.oracle_good if self.oracle_good else 1.0


@dataclass(frozen=True, slots=True)
class RetentionPoint:
    """One setup at one rate; the seeds draw arrivals and documents."""

    setup: TimedSetup
    rate_s: float
    runs: Seeds[RetentionResult]


def poisson(
    clock: VirtualClock,
    asks: Iterable[_A],
    rate_s: float,
    count: int,
    submit: Callable[[_A], None],
    seed: int,
    start_ms: float = 0.0,
) -> None:
    """Open loop: `count` requests from `start_ms` on, `rate_s` a second on average, independent of the answers."""
    # Not the plain seed: what is asked for is drawn from that, and would go with the gaps.
    draw = random.Random(f"arrivals {seed}")
    time_ms = start_ms
    for _, ask in zip(range(count), asks, strict=False):
        time_ms += 1e3 * draw.expovariate(rate_s)
        clock.at(time_ms, lambda ask=ask: submit(ask))  # type: ignore[misc]


def retain(load: Retention, setup: TimedSetup, rate_s: float, count: int, seed: int) -> RetentionResult:
    """Poisson arrivals, `rate_s` a second, `count` requests in all."""
    asks = load.asks(count, setup.block_tokens, seed)
    reused = [0] * count
    mesh = TimedMesh(setup)

    def note(ask: KeyedAsk, finished: Finished) -> None:
        reused[ask.number] = finished.cached_tokens

    mesh.on_finished = note
    poisson(mesh.clock, asks, rate_s, count, mesh.submit, seed, mesh.start_ms)
    mesh.run()
    mesh.mesh.check_nothing_left()
    again = _asked_before(asks)
    enough = GOOD_HIT * load.prefix_tokens
    oracle = oracle_reuse(asks, setup.pool_blocks, setup.block_tokens)
    return RetentionResult(
        replay=result_of(mesh, asks, setup, mesh.start_ms),
        again=len(again),
        good=sum(reused[number] >= enough for number in again),
        oracle_good=sum(oracle[number] >= enough for number in again),
    )


def retain_all(
    load: Retention,
    setups: Sequence[TimedSetup],
    rates_s: Sequence[float],
    count: int,
    seeds: int,
    jobs: int,
    progress: Callable[[int, int], None],
) -> list[RetentionPoint]:
    """Every setup at every rate with seeds 0, 1, ..., in `jobs` processes (0 = one a core), by rate, then setup."""
    points = [(setup, rate_s) for rate_s in rates_s for setup in setups]
    calls = [(load, setup, rate_s, count, seed) for setup, rate_s in points for seed in range(seeds)]
    runs = by_seeds(run_all(retain, calls, jobs, progress), seeds)
    return [RetentionPoint(*point, found) for point, found in zip(points, runs, strict=True)]


def _asked_before(asks: Sequence[KeyedAsk]) -> list[int]:
    seen: set[str] = set()
    again = []
    for ask in asks:
        if ask.kind in seen:
            again.append(ask.number)
        seen.add(ask.kind)
    return again
