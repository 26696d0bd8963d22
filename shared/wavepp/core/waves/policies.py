"""How many tokens the next wave may have: the static policy and MPU ("maximum pipeline utilisation")."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import GrantId
from wavepp.core.waves.time_packing import TimeBudget
from wavepp.core.waves.types import Chunk, FitReport, StepTime


@dataclass(frozen=True, slots=True)
class QueueView:
    """What a policy sees at the moment when a wave could be issued.

    `sizes`: tokens that each request has in no wave yet, ascending; valid during the call. `tokens`: their sum.
    `waves_in_flight`: issued and not yet done, of any kind.
    """

    sizes: Sequence[int]
    tokens: int
    waves_in_flight: int


class WavePolicy(ABC):
    """Chooses how large a wave's prefill is, and hears what it may need to know for that.

    With a fixed grid it decides less: see `WavePlanner`.
    """

    @abstractmethod
    def budget(self, view: QueueView) -> int | TimeBudget:
        """Tokens, which the planner clamps to [alignment, M], or predicted time. Asked exactly once for every wave
        with prefill in it.
        """

    def admitted(self, grant: GrantId, start: int, end: int) -> None:  # noqa: B027 - hearing it is optional
        """Prefill [start, end) of a new grant."""

    def left(self, grant: GrantId) -> None:  # noqa: B027 - hearing it is optional
        """A grant's prefill is done on all stages, or was given up. May be said twice."""

    def measured(self, chunks: Sequence[Chunk], steps: Sequence[StepTime]) -> None:  # noqa: B027
        """A wave with these chunks is done, in these steps."""

    def reset(self) -> None:  # noqa: B027 - hearing it is optional
        """All grants are gone."""

    def reports(self) -> list[FitReport]:
        """What it has learned of every stage's steps; empty when it does not learn."""
        return []


class StaticPolicy(WavePolicy):
    """Every wave may have M tokens."""

    def __init__(self, wave_tokens_max: int) -> None:
        if wave_tokens_max < 1:
            raise InvalidInputError(f"wave_tokens_max is {wave_tokens_max}; it must be positive")
        self._budget = wave_tokens_max

    def budget(self, view: QueueView) -> int:
        return self._budget


def mpu_budgets(wave_tokens_max: int, wave_tokens_min: int, block_tokens: int) -> tuple[int, ...]:
    """b_0 = M, b_{j+1} = max(b_min, align_down_B(b_j / 2)), until it no longer falls. Tokens, descending.

    b_min is at most M / 2, so that there are two budgets even where M is small.
    """
    smallest = min(wave_tokens_min, wave_tokens_max // 2)
    smallest = min(max(smallest // block_tokens * block_tokens, block_tokens), wave_tokens_max)
    budgets = [wave_tokens_max]
    while budgets[-1] > smallest:
        budgets.append(max(smallest, budgets[-1] // 2 // block_tokens * block_tokens))
    return tuple(budgets)


class MpuPolicy(WavePolicy):
    """The largest budget that still gives the pipeline enough waves.

    Wanted waves S = R + (F - 1) P with a ring of R. Waves on offer n(b) = max(W / b, N_{>b/2}), with W the
    waiting tokens and N_{>b/2} the requests that have more than b/2 of them, plus the waves in flight. The
    target is the largest b with n(b) >= S, else the smallest b. Going to a larger budget takes R / 2
    decisions in a row that want a larger one; to a smaller one, P; the last of them says which. The first is M.

    Where the description of MPU can be read in two ways: only tokens that must be computed count, requests that have
    begun are among them, and W / b is no whole number. A decision is made when a wave could be issued.
    """

    def __init__(
        self,
        *,
        stages: int,
        wave_tokens_max: int,
        wave_tokens_min: int,
        block_tokens: int,
        ring: int | None = None,
        factor: int = 2,
    ) -> None:
        """`ring` is R, by default 2P; `factor` is F. Tokens for M, b_min and B."""
        if min(stages, wave_tokens_max, wave_tokens_min, block_tokens, factor) < 1 or (ring is not None and ring < 1):
            raise InvalidInputError("stages, wave sizes, block size, ring and factor of MPU must all be positive")
        ring = 2 * stages if ring is None else ring
        self._budgets = mpu_budgets(wave_tokens_max, wave_tokens_min, block_tokens)
        self._wanted_waves = ring + (factor - 1) * stages
        self._larger_after = max(1, ring // 2)
        self._smaller_after = stages
        self._level = 0
        self._run = 0
        self._run_larger = False

    @property
    def budgets(self) -> tuple[int, ...]:
        """b_0, b_1, ... in tokens."""
        return self._budgets

    def budget(self, view: QueueView) -> int:
        target = self._target(view)
        larger = target < self._level
        if target == self._level:
            self._run = 0
        else:
            self._run = self._run + 1 if self._run > 0 and larger == self._run_larger else 1
            self._run_larger = larger
            if self._run >= (self._larger_after if larger else self._smaller_after):
                self._level = target
                self._run = 0
        return self._budgets[self._level]

    def waves_on_offer(self, view: QueueView, budget: int) -> float:
        """n(b) of this view."""
        large = len(view.sizes) - bisect_right(view.sizes, budget / 2)
        return max(view.tokens / budget, large) + view.waves_in_flight

    def _target(self, view: QueueView) -> int:
        for level, budget in enumerate(self._budgets):
            if self.waves_on_offer(view, budget) >= self._wanted_waves:
                return level
        return len(self._budgets) - 1
