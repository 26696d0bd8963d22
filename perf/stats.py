"""The arithmetic of the measurements: percentiles, and how busy stages were. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of the values do not exceed (nearest rank)."""
    if not values:
        raise ValueError("no values: nothing was measured")
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share {share} is not within 0 and 1")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


@dataclass(frozen=True, slots=True)
class Spread:
    """Of some values, in their own unit."""

    count: int
    p50: float
    p95: float
    p99: float
    largest: float

    def json(self) -> dict[str, float]:
        """For the results file."""
        return asdict(self)


def spread(values: Sequence[float]) -> Spread:
    """Raises ValueError when there are none."""
    p50, p95, p99 = (percentile(values, share) for share in (0.5, 0.95, 0.99))
    return Spread(len(values), p50, p95, p99, max(values))


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a wave on a stage; wall clock, nanoseconds."""

    stage: int
    start_ns: int
    duration_ns: int


def utilisation(steps: Iterable[Step], begin_ns: int, end_ns: int) -> dict[int, float]:
    """Share of [begin, end) that each stage spent in steps; of a step that sticks out only what is inside counts."""
    if end_ns <= begin_ns:
        raise ValueError(f"the window [{begin_ns}, {end_ns}) is empty")
    busy_ns: dict[int, int] = defaultdict(int)
    for step in steps:
        inside = min(end_ns, step.start_ns + step.duration_ns) - max(begin_ns, step.start_ns)
        busy_ns[step.stage] += max(0, inside)
    return {stage: ns / (end_ns - begin_ns) for stage, ns in sorted(busy_ns.items())}
