"""How the policy `cost` compares, cell by cell, with the better of the others and with the bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from perf.sim.grid import CellResult, Measured

THROUGHPUT_MIN: Final = 0.99
COMPLETION_MAX: Final = 1.02
OF_BOUND_EQUAL: Final = 0.97
OF_BOUND_MIXED: Final = 0.95
GAIN_MIN: Final = 1.8


@dataclass(frozen=True, slots=True)
class Comparison:
    """`throughput`, `p50`, `p95`: of `cost`, relative to whichever of static and mpu has the higher throughput.

    `of_bound`: utilisation of `cost` over the bound; for mixed workloads that of equal requests of the mean work, which
    is no bound in the strict sense there.
    """

    result: CellResult
    throughput: float
    p50: float
    p95: float
    of_bound: float

    @property
    def mixed(self) -> bool:
        """Whether the requests are of several kinds."""
        return len(self.result.cell.workload.shares) > 1

    @property
    def misses(self) -> list[str]:
        """Which goals are not reached."""
        of_bound_min = OF_BOUND_MIXED if self.mixed else OF_BOUND_EQUAL
        checks = (
            ("throughput", self.throughput >= THROUGHPUT_MIN),
            ("p50", self.p50 <= COMPLETION_MAX),
            ("p95", self.p95 <= COMPLETION_MAX),
            ("bound", self.of_bound >= of_bound_min),
        )
        return [name for name, holds in checks if not holds]


def compare(result: CellResult) -> Comparison:
    """Needs static, mpu and cost in the result."""
    cost = result.by_policy["cost"]
    best = better(result)
    return Comparison(
        result,
        cost.input_tokens_s / best.input_tokens_s,
        cost.p50_ms / best.p50_ms,
        cost.p95_ms / best.p95_ms,
        cost.utilisation / result.bound.utilisation,
    )


def better(result: CellResult) -> Measured:
    """Static or mpu, by throughput."""
    return max((result.by_policy["static"], result.by_policy["mpu"]), key=lambda one: one.input_tokens_s)


def gain_over_mpu(results: Sequence[CellResult], stages: int) -> float | None:
    """Geometric mean of throughput over mpu, c = 1 to 4, where all requests reuse a prefix; None without any."""
    ratios = [
        result.by_policy["cost"].input_tokens_s / result.by_policy["mpu"].input_tokens_s
        for result in results
        if result.cell.stages == stages
        and result.cell.concurrency <= 4
        and all(cached for _, _, cached, _ in result.cell.workload.shares)
    ]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
