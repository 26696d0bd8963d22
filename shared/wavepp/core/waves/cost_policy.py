"""The policy `cost`: waves of equal predicted time, as large as the requests under way allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import GrantId
from wavepp.core.waves.cost import StageCost, total
from wavepp.core.waves.cost_model import CostModel
from wavepp.core.waves.growth import WaveGrowth
from wavepp.core.waves.in_flight_work import InFlightWork
from wavepp.core.waves.policies import QueueView, WavePolicy
from wavepp.core.waves.target import WaveSize, WaveTarget
from wavepp.core.waves.time_packing import TimeBudget
from wavepp.core.waves.types import Chunk, FitReport, StepTime

_LAUNCH_OF_WAVE: Final = 0.02
"""Until there are measured steps: a launch costs as much as this part of a wave of M tokens."""

_PAIRS_LIKE_TOKEN: Final = 200_000.0
"""And so many pairs of attention as much as a token's other work."""


def default_prior(wave_tokens_max: int) -> StageCost:
    """Proportions that are of the right order for a transformer; the unit is arbitrary."""
    return StageCost(launch_ms=_LAUNCH_OF_WAVE * wave_tokens_max, token_ms=1.0, pair_ms=1.0 / _PAIRS_LIKE_TOKEN)


class CostPolicy(WavePolicy):
    """Knows what every stage's steps cost, and sizes waves by what is under way; see `WaveTarget` and `WaveGrowth`."""

    def __init__(
        self,
        *,
        stages: int,
        wave_tokens_max: int,
        priors: Sequence[StageCost] | None = None,
        hop_ms: float = 0.0,
        fixed_grid: bool = False,
    ) -> None:
        """`wave_tokens_max`: M. `priors`: what the stages cost, one a stage. `hop_ms`: from a stage to the next.
        `fixed_grid`: chunks are cut at multiples of M, whatever a wave should be.
        """
        priors = priors or [default_prior(wave_tokens_max)] * stages
        if len(priors) != stages:
            raise InvalidInputError(f"{len(priors)} prior costs for {stages} stages; give one a stage, or none")
        self._wave_tokens_max = wave_tokens_max
        self._reference = total([(0, wave_tokens_max)])
        self._model = CostModel(priors, self._reference)
        self._version = self._model.version
        self._in_flight = InFlightWork(self._model.pipeline.slowest, 2 * stages)
        self._target = WaveTarget(hop_ms)
        self._growth = None if fixed_grid else WaveGrowth(stages)
        self._priced = self._model.pipeline.slowest

    def budget(self, view: QueueView) -> TimeBudget:
        if self._version != self._model.version:
            self._version = self._model.version
            self._reprice()
        cost = self._model.pipeline
        typical = self._in_flight.look()
        size = self._target.size(typical, cost, self._wave_tokens_max * typical.ms_per_token)
        if self._growth is not None:
            launch_ms, others = cost.slowest.launch_ms, cost.others
            work_ms = self._growth.next_ms(size.work_ms, launch_ms, others, view.waves_in_flight)
            size = WaveSize(work_ms, size.cutting)
        return TimeBudget(size, cost.slowest, typical.smallest_ms)

    def admitted(self, grant: GrantId, start: int, end: int) -> None:
        self._in_flight.add(grant, start, end)

    def left(self, grant: GrantId) -> None:
        self._in_flight.remove(grant)
        if not self._in_flight:
            self._forget_growth()

    def measured(self, chunks: Sequence[Chunk], steps: Sequence[StepTime]) -> None:
        # Waves of nothing but decode steps are many and all alike: the fit would forget what prefill costs.
        if not all(chunk.decode for chunk in chunks):
            self._model.measured(total((chunk.start, chunk.length) for chunk in chunks), steps)

    def reset(self) -> None:
        self._in_flight.clear()
        self._forget_growth()

    def reports(self) -> list[FitReport]:
        """What was learned, by stage."""
        return self._model.reports()

    def _reprice(self) -> None:
        cost = self._model.pipeline.slowest
        if self._growth is not None:
            self._growth.repriced(cost.work_ms(self._reference) / self._priced.work_ms(self._reference))
        self._priced = cost
        self._in_flight.reprice(cost)
        self._target.cost_changed()

    def _forget_growth(self) -> None:
        if self._growth is not None:
            self._growth.forget()
