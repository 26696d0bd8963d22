"""Replays a trace through the timed mesh: how well stages are used, how long clients wait, what is reused."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from wavepp.core.errors import InvalidInputError
from wavepp.sim import clients
from wavepp.sim.keyed import KeyedAsk
from wavepp.sim.lru_oracle import LruOracle, reusable_blocks
from wavepp.sim.parallel import run_all
from wavepp.sim.results import Summary, quantile
from wavepp.sim.seeds import Seeds, by_seeds
from wavepp.sim.timed_mesh import TimedMesh, TimedSetup


@dataclass(frozen=True, slots=True)
class Waiting:
    """From arrival to grant, in ms. `queued_max`: the most requests that ever had no grant."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    queued_max: int


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Of one run. Tokens: `prompt_tokens` of all requests that were answered, `reused_tokens` of these found in the
    caches, `oracle_tokens` what one cache of a stage's size with exact LRU would have found of all requests, in order
    of arrival (so where some `failed`, `realised` is too low).
    """

    summary: Summary
    waiting: Waiting
    prompt_tokens: int
    reused_tokens: int
    oracle_tokens: int
    failed: int

    @property
    def reuse(self) -> float:
        """Part of all tokens that was reused."""
        return self.reused_tokens / self.prompt_tokens

    @property
    def realised(self) -> float:
        """Reuse against the oracle's; 1 where there was nothing to reuse."""
        return self.reused_tokens / self.oracle_tokens if self.oracle_tokens else 1.0


def spread_out(timed: Sequence[tuple[float, KeyedAsk]], within_ms: float, seed: int) -> list[tuple[float, KeyedAsk]]:
    """Every request so much later than stamped as is drawn from [0, `within_ms`), in the order of time.

    For traces whose stamps are coarse: who comes within one tick would else come in one burst.
    """
    draw = random.Random(seed)
    return sorted(((at_ms + draw.uniform(0.0, within_ms), ask) for at_ms, ask in timed), key=itemgetter(0))


def replay(timed: Iterable[tuple[float, KeyedAsk]], setup: TimedSetup, speed: float = 1.0) -> ReplayResult:
    """Every request at its own time (ms), `speed` times as fast, until all are answered."""
    if not speed > 0.0:
        raise InvalidInputError(f"speed is {speed}: give more than 0, 1 for the trace's own")
    arrivals = list(timed)
    mesh = TimedMesh(setup)
    # The first request comes when the mesh is up, whatever the clock of the trace said then.
    first_ms = arrivals[0][0] if arrivals else 0.0
    shifted = ((time_ms - first_ms + speed * mesh.start_ms, ask) for time_ms, ask in arrivals)
    clients.replay(mesh.clock, shifted, speed, mesh.submit)
    mesh.run()
    mesh.mesh.check_nothing_left()
    return result_of(mesh, (ask for _, ask in arrivals), setup, mesh.start_ms)


def replay_all(
    timed: Sequence[tuple[float, KeyedAsk]],
    setups: Sequence[TimedSetup],
    speed: float,
    within_ms: float,
    seeds: int,
    jobs: int,
    progress: Callable[[int, int], None],
) -> list[Seeds[ReplayResult]]:
    """By setup, each with seeds 0, 1, ..., which spread requests `within_ms` of their stamps. In `jobs` processes."""
    calls = [(timed, setup, speed, within_ms, seed) for setup in setups for seed in range(seeds)]
    return by_seeds(run_all(_replay_spread, calls, jobs, progress), seeds)


def _replay_spread(
    timed: Sequence[tuple[float, KeyedAsk]], setup: TimedSetup, speed: float, within_ms: float, seed: int
) -> ReplayResult:
    return replay(spread_out(timed, within_ms, seed), setup, speed)


def result_of(mesh: TimedMesh, asks: Iterable[KeyedAsk], setup: TimedSetup, start_ms: float) -> ReplayResult:
    """Of a run that has ended. `asks`: all requests, in order of arrival, from `start_ms` on."""
    finished = mesh.log.finished
    if not finished:
        raise InvalidInputError("no request was answered: give a trace with requests that fit the pools")
    waits = sorted(one.waited_ms for one in finished)
    return ReplayResult(
        summary=mesh.log.summary(0, start_ms),
        waiting=Waiting(quantile(waits, 0.5), quantile(waits, 0.95), quantile(waits, 0.99), mesh.queued_max),
        prompt_tokens=sum(one.prompt_tokens for one in finished),
        reused_tokens=sum(one.cached_tokens for one in finished),
        oracle_tokens=sum(oracle_reuse(asks, setup.pool_blocks, setup.block_tokens)),
        failed=len(mesh.failures),
    )


def oracle_reuse(asks: Iterable[KeyedAsk], capacity_blocks: int, block_tokens: int) -> list[int]:
    """Tokens that exact LRU would reuse of every request, in this order."""
    oracle = LruOracle(capacity_blocks)
    return [block_tokens * oracle.ask(ask.keys, reusable_blocks(ask.prompt_tokens, block_tokens)) for ask in asks]
