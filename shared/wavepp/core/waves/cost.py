"""What a step costs: t(L, x) = c + sum over chunks of b x + a (2 L x + x^2), for every stage.

x new tokens after L earlier ones of the same request: b is the cost of a token in the layers, a that of a pair of
tokens in attention (a chunk has about 2 L x + x^2 pairs, counted twice as is usual), c the launch: what a step costs
whatever is in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from wavepp.core.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Amount:
    """Work in a stage's own units: `tokens` is x, `pairs` 2 L x + x^2, summed over chunks."""

    tokens: float
    pairs: float


def amount(start: int, length: int) -> Amount:
    """Of a chunk of `length` tokens after `start` earlier ones."""
    return Amount(length, (2 * start + length) * length)


def total(chunks: Iterable[tuple[int, int]]) -> Amount:
    """Of the chunks (start, length) of one wave."""
    tokens = pairs = 0
    for start, length in chunks:
        tokens += length
        pairs += (2 * start + length) * length
    return Amount(tokens, pairs)


@dataclass(frozen=True, slots=True)
class StageCost:
    """c, b and a of one stage, in milliseconds: for a step, for a token, for a pair."""

    launch_ms: float
    token_ms: float
    pair_ms: float

    def __post_init__(self) -> None:
        parts = (self.launch_ms, self.token_ms, self.pair_ms)
        if not all(math.isfinite(part) and part >= 0.0 for part in parts) or self.token_ms + self.pair_ms <= 0.0:
            raise InvalidInputError(f"{self}: no cost may be negative, and tokens must cost something")

    def chunk_ms(self, start: int, length: int) -> float:
        """Of a chunk's own work; the launch is not in it."""
        return length * (self.token_ms + self.pair_ms * (2 * start + length))

    def work_ms(self, work: Amount) -> float:
        """Of the work of any number of chunks; the launch is not in it."""
        return self.token_ms * work.tokens + self.pair_ms * work.pairs

    def step_ms(self, work: Amount) -> float:
        """Of a whole step."""
        return self.launch_ms + self.work_ms(work)

    def tokens_in(self, start: int, budget_ms: float) -> float:
        """How many tokens after `start` earlier ones take `budget_ms`: the positive root of `chunk_ms`."""
        if budget_ms <= 0.0:
            return 0.0
        linear = self.token_ms + 2.0 * self.pair_ms * start
        # The usual form of the root loses all digits where pairs cost next to nothing; this one does not.
        return 2.0 * budget_ms / (linear + math.sqrt(linear * linear + 4.0 * self.pair_ms * budget_ms))

    def scaled(self, factor: float) -> StageCost:
        """Everything `factor` times as slow."""
        return StageCost(self.launch_ms * factor, self.token_ms * factor, self.pair_ms * factor)


@dataclass(frozen=True, slots=True)
class PipelineCost:
    """What the stages of a pipeline cost, as a scheduler needs it.

    `slowest`: the stage that limits throughput. `others`: the time of all other stages together, in units of the
    slowest one; P - 1 where all are equal.
    """

    slowest: StageCost
    others: float


def pipeline_cost(stages: list[StageCost], reference: Amount) -> PipelineCost:
    """`reference`: a typical step, by which stages are compared."""
    times = [stage.step_ms(reference) for stage in stages]
    slowest = max(range(len(stages)), key=times.__getitem__)
    return PipelineCost(stages[slowest], sum(times) / times[slowest] - 1.0)
