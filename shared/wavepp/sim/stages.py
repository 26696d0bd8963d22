"""Stages that take the time that a profile says, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wavepp.core.ids import StageIndex
from wavepp.core.waves.cost import Amount, StageCost
from wavepp.core.waves.types import StepTime
from wavepp.sim.results import WaveSpan

_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class Passage:
    """When a wave leaves stage 0 and the last stage, and what its steps took. Times in ms."""

    stage0_done_ms: float
    done_ms: float
    steps: tuple[StepTime, ...]


class TimedStages:
    """P stages that run waves one after another, in order, each as soon as it is free and the wave is there.

    So a wave's whole way is known when it is issued, and there is nothing to simulate step by step.
    """

    def __init__(self, costs: Sequence[StageCost], hop_ms: float, spans: list[WaveSpan] | None) -> None:
        self._costs = list(costs)
        self._hop_ms = hop_ms
        self._free_ms = [0.0] * len(self._costs)
        self._spans = spans

    def run(self, wave: int, now_ms: float, work: Amount, grant: int, on_path_ms: float = 0.0) -> Passage:
        """`grant`: that of the first chunk. `on_path_ms`: what every stage does before the step, besides it."""
        there = now_ms
        steps: list[StepTime] = []
        first_done = 0.0
        for stage, cost in enumerate(self._costs):
            start = max(there, self._free_ms[stage])
            took = on_path_ms + cost.step_ms(work)
            end = self._free_ms[stage] = start + took
            queued = int((start - there) * _NS_PER_MS)
            steps.append(
                StepTime(StageIndex(stage), int(start * _NS_PER_MS), int(took * _NS_PER_MS), queued, int(work.tokens))
            )
            if self._spans is not None:
                self._spans.append(WaveSpan(wave, stage, start, end, int(work.tokens), grant))
            if stage == 0:
                first_done = end
            there = end + self._hop_ms
        return Passage(first_done, self._free_ms[-1], tuple(steps))
