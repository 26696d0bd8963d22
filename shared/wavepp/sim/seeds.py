"""The same run with several seeds: what it comes to, and how much that hangs on the draw."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Result = TypeVar("Result")
Other = TypeVar("Other")


@dataclass(frozen=True, slots=True)
class Seeds(Generic[Result]):
    """By seed; not empty."""

    results: tuple[Result, ...]

    def mean(self, value: Callable[[Result], float]) -> float:
        """Over the seeds."""
        return statistics.fmean(map(value, self.results))

    def spread(self, value: Callable[[Result], float]) -> float:
        """Highest - lowest."""
        values = list(map(value, self.results))
        return max(values) - min(values)

    def each(self, part: Callable[[Result], Other]) -> Seeds[Other]:
        """A part of every result."""
        return Seeds(tuple(map(part, self.results)))


def by_seeds(results: Sequence[Result], seeds: int) -> list[Seeds[Result]]:
    """Of a list in which the runs of every point follow one another."""
    return [Seeds(tuple(results[at : at + seeds])) for at in range(0, len(results), seeds)]
