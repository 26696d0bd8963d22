"""What every simulated model and executor is, and when jobs run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from wavepp.core.ids import StageIndex
from wavepp.core.router import events as router_ev
from wavepp.core.stage import events as stage_ev
from wavepp.core.waves.cost import StageCost, total
from wavepp.core.waves.types import StepTime

Failing: TypeAlias = Callable[[StageIndex, stage_ev.PlacedChunk], str]
"""Why a chunk's output is not finite on a stage; empty while all is well."""

_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class JobSpan:
    """When a job was handed over, began and ended. In ms."""

    handed_ms: float
    start_ms: float
    end_ms: float

    def step(self, stage: StageIndex, tokens: int) -> StepTime:
        """What the stage reports of it."""
        took_ms, queued_ms = self.end_ms - self.start_ms, self.start_ms - self.handed_ms
        return StepTime(
            stage, int(self.start_ms * _NS_PER_MS), int(took_ms * _NS_PER_MS), int(queued_ms * _NS_PER_MS), tokens
        )


class Executor(ABC):
    """Runs the jobs of one stage, in order, one after another."""

    @abstractmethod
    def takes_ms(self, job: stage_ev.RunJob) -> float:
        """How long the job takes once it begins."""

    @abstractmethod
    def run(self, job: stage_ev.RunJob, span: JobSpan) -> stage_ev.JobDone:
        """Do a job; `span` is when it was done."""


class SimModel(ABC):
    """What the stages of a mesh run."""

    @abstractmethod
    def executor(self, stage: StageIndex, failing: Failing) -> Executor:
        """For a new process of a stage."""

    @abstractmethod
    def payload(self, wave: router_ev.IssueWave) -> object:
        """What stage 0 gets of a wave's tokens."""


def step_ms(cost: StageCost, job: stage_ev.RunJob) -> float:
    """A wave without chunks launches nothing."""
    return cost.step_ms(total((chunk.start, chunk.length) for chunk in job.chunks)) if job.chunks else 0.0
