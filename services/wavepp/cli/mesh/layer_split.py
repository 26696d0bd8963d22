"""How many layers each stage should have, from what its steps take with those that it has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from wavepp.core.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class LayerAdvice:
    """`layers`: one number a stage. `slowest_ms`: what the slowest stage is predicted to take with it."""

    layers: tuple[int, ...]
    slowest_ms: float


def even_layers(layers: Sequence[int], step_ms: Sequence[float]) -> LayerAdvice:
    """The numbers of layers, of the same sum, with the fastest slowest stage.

    `step_ms`: the same step on every stage as it is. A stage's time is taken to go by its number of layers; what the
    embedding and the head cost is smeared over theirs, so treat a gain of a few percent as none.
    """
    if len(layers) != len(step_ms) or not layers or min(layers) < 1 or min(step_ms) <= 0.0:
        raise InvalidInputError(f"layers {list(layers)}, times {list(step_ms)}: one of each a stage, all positive")
    each = [took / count for took, count in zip(step_ms, layers, strict=True)]
    wanted = sum(layers)

    def fits(limit_ms: float) -> list[int]:
        return [max(1, math.floor(limit_ms / one * (1.0 + 1e-12))) for one in each]

    # The best limit is the time of some number of layers on some stage.
    limits = sorted({one * count for one in each for count in range(1, wanted + 1)})
    low, high = 0, len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        if sum(fits(limits[middle])) >= wanted:
            high = middle
        else:
            low = middle + 1
    found = fits(limits[low])
    for _ in range(sum(found) - wanted):
        # Take from whoever is slowest: it lowers the sum of what waits for the slowest stage most.
        stage = max((s for s in range(len(found)) if found[s] > 1), key=lambda s: found[s] * each[s])
        found[stage] -= 1
    return LayerAdvice(tuple(found), max(count * one for count, one in zip(found, each, strict=True)))
