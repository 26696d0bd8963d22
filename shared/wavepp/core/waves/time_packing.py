"""Filling a wave with a certain amount of predicted time."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol, TypeVar

from wavepp.core.waves.cost import StageCost
from wavepp.core.waves.target import Cutting, WaveSize
from wavepp.core.waves.types import PlannerConfig

_LEFTOVER: Final = 0.1
_ROUND_UP_ABOVE: Final = 0.3
"""Equal parts are rounded up to the alignment but for a rest below this: no part is then larger than the others' round
up, and there is no tiny last one."""

_HUGE: Final = 16.0
"""A request that is so many times as much work as another one that waits shares its waves with it."""

_HUGE_SHARE: Final = 0.5
_LOOK_AHEAD: Final = 64


@dataclass(frozen=True, slots=True)
class _Rules:
    """`snap`: a request may exceed what is left of a wave by this part of itself (at most of a wave) rather than be cut
    there. `fragment`: the least part of a wave that a request behind the first gets of it when it must be cut.
    `passing`: whether one that does not fit is passed over for later ones; it stays ahead of all that overtook it.
    """

    snap: float
    fragment: float
    passing: bool


_RULES: Final = {
    # Where requests are to stay whole a wave ends where the sum comes nearest to its target.
    Cutting.EQUAL_PARTS: _Rules(0.5, 0.3, passing=False),
    Cutting.ANYWHERE: _Rules(0.12, 0.12, passing=False),
    Cutting.MIXED: _Rules(0.12, 0.5, passing=True),
}


class Work(Protocol):
    """A request with prefill that is in no wave yet; see `PrefillWork`. In tokens."""

    @property
    def reused(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def end(self) -> int: ...


_W = TypeVar("_W", bound=Work)


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """A wave of this much predicted time on the slowest stage, which costs `cost`.

    `smallest_ms`: no request under way is less work, so beside what is not much more none needs to be looked for.
    """

    size: WaveSize
    cost: StageCost
    smallest_ms: float = 0.0


def fill_by_time(
    works: Collection[_W], budget: TimeBudget, config: PlannerConfig, requests_max: int
) -> list[tuple[_W, int]]:
    """Which requests get how many tokens, at least one when there is any.

    First come first served, but for who is passed over (see `_Rules`) and for huge requests (see `_in_order`).
    """
    filling = _Filling(budget, config)
    chosen: list[tuple[_W, int]] = []
    passed_over = 0
    passed_over_max = config.fill_ahead_max if _RULES[budget.size.cutting].passing else 0
    for work, cap in _in_order(works, budget):
        length = filling.length(work, cap, first=not chosen)
        if not length:
            passed_over += 1
            if passed_over > passed_over_max:
                break
            continue
        chosen.append((work, length))
        filling.take(work, length)
        if filling.full or len(chosen) >= requests_max:
            break
    return chosen


def _in_order(works: Collection[_W], budget: TimeBudget) -> Iterable[tuple[_W, float]]:
    """The requests, each with the most of a wave that it may take.

    As they came; but while a huge one is first, some much smaller ones behind it share its waves.
    """
    cost, target = budget.cost, budget.size.work_ms
    head = next(iter(works), None)
    if head is not None and cost.chunk_ms(head.position, head.stop - head.position) > 2.0 * target:
        limit = cost.chunk_ms(head.reused, head.end - head.reused) / _HUGE
        behind = list(islice(works, 1, 1 + _LOOK_AHEAD)) if limit >= budget.smallest_ms else []
        small = [work for work in behind if cost.chunk_ms(work.reused, work.end - work.reused) <= limit]
        if small:
            theirs = sum(cost.chunk_ms(work.position, work.stop - work.position) for work in small)
            yield head, max(_HUGE_SHARE * target, target - theirs)
            chosen = set(map(id, small))
            yield from ((work, math.inf) for work in (*small, *(one for one in behind if id(one) not in chosen)))
            return
    yield from ((work, math.inf) for work in works)


class _Filling:
    """What is left of one wave."""

    def __init__(self, budget: TimeBudget, config: PlannerConfig) -> None:
        self._cost = budget.cost
        self._target = budget.size.work_ms
        self._equal = budget.size.cutting is Cutting.EQUAL_PARTS
        self._rules = _RULES[budget.size.cutting]
        self._config = config
        self._left_ms = self._target
        self._left_tokens = config.wave_tokens_max

    @property
    def full(self) -> bool:
        return self._left_ms <= 1e-9 * self._target or self._left_tokens <= 0

    def take(self, work: Work, length: int) -> None:
        self._left_ms -= self._cost.chunk_ms(work.position, length)
        self._left_tokens -= length

    def length(self, work: Work, cap_ms: float, *, first: bool) -> int:
        """Tokens of the request's next chunk; 0 when it does not fit, which never happens to the first."""
        if self._config.fixed_grid:
            return self._on_grid(work, first=first)
        whole = work.stop - work.position
        whole_ms = self._cost.chunk_ms(work.position, whole)
        room_ms = self._target if first else self._left_ms
        if whole <= self._left_tokens and whole_ms <= room_ms + self._rules.snap * min(whole_ms, self._target):
            leftover = min(self._rules.snap * whole_ms, _LEFTOVER * self._target)
            return whole if first or self._left_ms >= leftover else 0
        if first:
            return self._first_part(work, whole, whole_ms, cap_ms)
        if self._left_ms < self._rules.fragment * self._target or (self._equal and whole_ms < self._target):
            return 0
        return self._aligned(work, self._cost.tokens_in(work.position, self._left_ms), 0.5)

    def _first_part(self, work: Work, whole: int, whole_ms: float, cap_ms: float) -> int:
        if not self._equal:
            tokens = self._cost.tokens_in(work.position, min(self._target, cap_ms))
            return max(self._aligned(work, tokens, 0.5), self._smallest(work))
        parts = max(1, math.ceil(whole_ms / self._target - self._rules.snap))
        tokens = self._cost.tokens_in(work.position, min(whole_ms / parts, cap_ms))
        return max(self._aligned(work, tokens, 1.0 - _ROUND_UP_ABOVE), self._smallest(work))

    def _smallest(self, work: Work) -> int:
        alignment = self._config.alignment_tokens
        return min((work.position // alignment + 1) * alignment, work.stop) - work.position

    def _aligned(self, work: Work, tokens: float, up: float) -> int:
        """About `tokens`, ending at the alignment (rounded up from 1 - `up` of it) or where the request does."""
        alignment = self._config.alignment_tokens
        end = math.floor((work.position + tokens) / alignment + up) * alignment
        most = work.position + self._left_tokens
        if end >= work.stop and work.stop <= most:
            return work.stop - work.position
        return max(0, min(end, most // alignment * alignment) - work.position)

    def _on_grid(self, work: Work, *, first: bool) -> int:
        grid = self._config.wave_tokens_max
        length = min(work.stop, (work.position // grid + 1) * grid) - work.position
        fits = length <= self._left_tokens and self._cost.chunk_ms(work.position, length) <= self._left_ms * (
            1.0 + self._rules.snap
        )
        return length if first or fits else 0
