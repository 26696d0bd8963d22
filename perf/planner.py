"""The scheduler's own time: a wave planned, and a done wave learned from, with 1,000 requests queued and 128 begun."""

from __future__ import annotations

import random
import statistics
import time
from typing import Final

from perf.clusters import BLOCK_TOKENS, parser
from perf.machine import LoadWatch
from perf.report import Cell, Goal, finish, table
from perf.stats import percentile

from wavepp.core.ids import GrantId, StageIndex
from wavepp.core.waves.planner import WavePlanner
from wavepp.core.waves.policy_factory import POLICY_NAMES, PolicyName, make_policy
from wavepp.core.waves.types import PlannedWave, PlannerConfig, StepTime

QUEUED: Final = 1000
BEGUN: Final = 128
STAGES: Final = 8
WAVE_TOKENS_MAX: Final = 16_384
GOAL_US: Final = 100.0


class Bench:
    """A planner that always has `QUEUED` requests that have not begun and `BEGUN` that have."""

    def __init__(self, name: PolicyName, seed: int) -> None:
        policy = make_policy(
            name,
            stages=STAGES,
            wave_tokens_max=WAVE_TOKENS_MAX,
            wave_tokens_min=WAVE_TOKENS_MAX // 2,
            block_tokens=BLOCK_TOKENS,
        )
        config = PlannerConfig(
            stages=STAGES,
            wave_tokens_max=WAVE_TOKENS_MAX,
            wave_tokens_min=WAVE_TOKENS_MAX // 2,
            block_tokens=BLOCK_TOKENS,
            alignment_tokens=BLOCK_TOKENS,
        )
        self._planner = WavePlanner(config, policy)
        self._rng = random.Random(seed)
        self._grants = 0
        self.planning_us: list[float] = []
        self.learning_us: list[float] = []
        # One long request after another begins in mid-prefill as far as the planner can tell: with a prefix behind it.
        for _ in range(BEGUN):
            self._add(self._rng.randrange(1, 1000) * BLOCK_TOKENS, 100_000)
        for _ in range(QUEUED):
            self._add_short()

    def wave(self) -> None:
        """Plan one, with seven others in flight, and report it done."""
        began = time.perf_counter_ns()
        planned = self._planner.plan(STAGES - 1, 1)
        self.planning_us.append((time.perf_counter_ns() - began) / 1e3)
        if planned is None:
            raise RuntimeError("nothing was planned although requests wait")
        tokens = sum(chunk.length for chunk in planned.chunks)
        steps = tuple(
            StepTime(StageIndex(stage), 0, 6_000_000 + tokens * self._rng.randrange(15_000, 20_000), 0, tokens)
            for stage in range(STAGES)
        )
        began = time.perf_counter_ns()
        self._planner.measured(planned.chunks, steps)
        self.learning_us.append((time.perf_counter_ns() - began) / 1e3)
        self._replace(planned)

    def _replace(self, planned: PlannedWave) -> None:
        for chunk in planned.chunks:
            if chunk.last:
                self._planner.end(chunk.grant)
                self._add_short()

    def _add_short(self) -> None:
        self._add(self._rng.randrange(0, 1000) * BLOCK_TOKENS, self._rng.randrange(100, 20_000))

    def _add(self, reused: int, tokens: int) -> None:
        self._grants += 1
        self._planner.add(GrantId(self._grants), reused, reused + tokens, False)


def main() -> None:
    """Measure, print, write."""
    arguments = parser(__doc__).parse_args()
    waves = 200 if arguments.quick else 5000
    watch = LoadWatch()
    rows: list[list[Cell]] = []
    goals = []
    for name in POLICY_NAMES:
        bench = Bench(name, arguments.seed)
        for _ in range(waves):
            bench.wave()
        for what, taken in (("planned", bench.planning_us), ("done", bench.learning_us)):
            rows.append([f"{name}, a wave {what}", len(taken), statistics.median(taken), percentile(taken, 0.99)])
        goals.append(Goal(f"{name}, a wave planned, median", statistics.median(bench.planning_us), GOAL_US, "us"))
    print(f"{QUEUED:,} requests queued, {BEGUN} begun, P = {STAGES}, M = {WAVE_TOKENS_MAX:,}")
    print(table(("what", "times", "p50 us", "p99 us"), rows))
    finish("planner", vars(arguments), {"us": rows}, goals, watch.load())


if __name__ == "__main__":
    main()
