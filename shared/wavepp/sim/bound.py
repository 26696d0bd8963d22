"""The most that a regular schedule of equal requests can reach."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_PARTS_MAX: Final = 20_000


@dataclass(frozen=True, slots=True)
class Bound:
    """`utilisation`: of the slowest stage. `requests`, `parts`: m in a wave and n waves each, where it is reached."""

    utilisation: float
    requests: int
    parts: int


def equal_bound(
    *,
    stages: int,
    concurrency: int,
    work_ms: float,
    launch_ms: float,
    hop_ms: float = 0.0,
    admission_ms: float = 0.0,
    others: float | None = None,
) -> Bound:
    """c equal requests in closed loop, W = `work_ms` each on the slowest stage, m of them in a wave, each in n waves:

        latency    >= (n + P - 1) (m W / n + c0) + (P - 1) h + a
        throughput <= min(c / latency, m / (m W + n c0)),   utilisation = throughput * W

    maximised over m <= c and n. c0 = `launch_ms`, h = `hop_ms` (between two stages; a wave's hop overlaps with the
    next wave's step, so it counts once a stage, not once a wave), a = `admission_ms`. `others`: the other stages' time
    in units of the slowest one, P - 1 if absent. Exact cuts are assumed: blocks and M can keep a schedule from it.

    Regular: all m requests of a wave go through the same n waves. A staggered pattern, in which most requests touch
    fewer waves than the unluckiest, can exceed it by some percent while all requests are exactly equal; with lengths
    that vary by 5 % the best of them came up to it.
    """
    others = stages - 1.0 if others is None else others
    best = Bound(0.0, 1, 1)
    for m in range(1, concurrency + 1):
        rising = 0.0
        for n in range(1, _PARTS_MAX if m == 1 else 64):
            latency = (n + others) * (m * work_ms / n + launch_ms) + (stages - 1) * hop_ms + admission_ms
            value = work_ms * min(concurrency / latency, m / (m * work_ms + n * launch_ms))
            if value > best.utilisation * (1.0 + 1e-12):
                best = Bound(value, m, n)
            if value < rising:
                break
            rising = value
        if m * work_ms > 1e3 * max(launch_ms, 1e-9) and concurrency / m < math.ceil(others):
            break
    return best
