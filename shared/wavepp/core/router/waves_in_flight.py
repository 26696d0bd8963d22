"""Waves that the last stage has not done, how far each stage is with them, and which of them a dead stage was at."""

from __future__ import annotations

from dataclasses import dataclass

from wavepp.core.ids import GrantId, StageIndex, WaveId
from wavepp.core.waves.types import Chunk


@dataclass(frozen=True, slots=True)
class IssuedWave:
    """What is in a wave, without its tokens."""

    chunks: tuple[Chunk, ...]
    ended: tuple[GrantId, ...]

    @property
    def grants(self) -> frozenset[GrantId]:
        """Those that run in it."""
        return frozenset(chunk.grant for chunk in self.chunks)


class WavesInFlight:
    """Of one pipeline, in order. Wave numbers only grow, over epochs too.

    `reports`: whether all stages report their steps in this epoch, or only stage 0.
    """

    def __init__(self) -> None:
        self.reports = False
        self._waves: dict[WaveId, IssuedWave] = {}
        self._lost: dict[WaveId, IssuedWave] = {}
        self._done_by: dict[StageIndex, WaveId] = {}

    def __len__(self) -> int:
        return len(self._waves)

    @property
    def on_stage0(self) -> int:
        """Those that stage 0 has not done."""
        done = self._reached(StageIndex(0))
        return sum(1 for wave in self._waves if wave > done)

    @property
    def any_with_chunks(self) -> bool:
        """Whether a grant runs in one of them."""
        return any(issued.chunks for issued in self._waves.values())

    @property
    def any_of_ends(self) -> bool:
        """Whether one of them has nothing but ends of grants."""
        return any(not issued.chunks for issued in self._waves.values())

    def issue(self, wave: WaveId, issued: IssuedWave) -> None:
        """It is on its way."""
        self._waves[wave] = issued

    def step_done(self, stage: StageIndex, wave: WaveId) -> None:
        """A stage has done a wave, also of those that were lost meanwhile."""
        self._done_by[stage] = max(wave, self._done_by.get(stage, WaveId(0)))

    def wave_done(self, wave: WaveId) -> IssuedWave | None:
        """Every stage has done it. None when it was lost, or is not known."""
        self._lost.pop(wave, None)
        return self._waves.pop(wave, None)

    def broke(self) -> None:
        """They are lost."""
        self._lost |= self._waves
        self._waves = {}

    def forget_lost(self, *, reports: bool) -> None:
        """The pipeline works again, with or without reports of all stages."""
        self._lost = {}
        self.reports = reports

    def suspected(self, stage: StageIndex, died: frozenset[StageIndex]) -> frozenset[GrantId]:
        """Grants of the lost waves that a stage can have been at when it died.

        With reports that is the first that it had not said to be done, and the one after it: the last word may have
        been lost, and its receiving may have been what it died of. A wave that the stage before never finished was not
        there yet. Without, it is whatever stage 0 has passed on.
        """
        first = self._reached(stage) + 1
        before = StageIndex(stage - 1 if self.reports else 0)
        came = self._reached(before) if stage and before not in died else None
        there = sorted(wave for wave in self._lost if wave >= first and (came is None or wave <= came))
        waves = there[:2] if self.reports or not stage else there
        return frozenset(grant for wave in waves for grant in self._lost[wave].grants)

    def _reached(self, stage: StageIndex) -> WaveId:
        """The last wave that a stage has done, by its own word or that of one behind it."""
        return max((wave for by, wave in self._done_by.items() if by >= stage), default=WaveId(0))
