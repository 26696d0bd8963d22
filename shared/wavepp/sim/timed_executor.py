"""An executor that takes the time that a cost says and computes nothing: no token, block or state is looked at."""

from __future__ import annotations

from collections.abc import Sequence

from wavepp.core.ids import GrantId, StageIndex
from wavepp.core.router import events as router_ev
from wavepp.core.stage import events as stage_ev
from wavepp.core.waves.cost import StageCost
from wavepp.core.waves.types import ChosenToken
from wavepp.sim.jobs import Executor, Failing, JobSpan, SimModel, step_ms
from wavepp.sim.results import WaveSpan

_TOKEN = ChosenToken(0, 0.0)


class TimedExecutor(Executor):
    """`failing` still fails chunks. `spans`: where steps are noted, if they are."""

    def __init__(self, stage: StageIndex, cost: StageCost, failing: Failing, spans: list[WaveSpan] | None) -> None:
        self._stage = stage
        self._cost = cost
        self._failing = failing
        self._spans = spans

    def takes_ms(self, job: stage_ev.RunJob) -> float:
        return step_ms(self._cost, job)

    def run(self, job: stage_ev.RunJob, span: JobSpan) -> stage_ev.JobDone:
        tokens = 0
        failed: list[tuple[GrantId, str]] = []
        samples: list[tuple[GrantId, ChosenToken]] = []
        for chunk in job.chunks:
            tokens += chunk.length
            reason = self._failing(self._stage, chunk)
            if reason:
                failed.append((chunk.grant, reason))
            elif chunk.sample:
                samples.append((chunk.grant, _TOKEN))
        if self._spans is not None and job.chunks:
            self._spans.append(WaveSpan(job.wave, self._stage, span.start_ms, span.end_ms, tokens, job.chunks[0].grant))
        return stage_ev.JobDone(job.wave, span.step(self._stage, tokens), tuple(failed), None, tuple(samples))


class TimedModel(SimModel):
    """Stages that cost `costs`, one each. `spans`: see `TimedExecutor`."""

    def __init__(self, costs: Sequence[StageCost], spans: list[WaveSpan] | None = None) -> None:
        self._costs = list(costs)
        self._spans = spans

    def executor(self, stage: StageIndex, failing: Failing) -> TimedExecutor:
        return TimedExecutor(stage, self._costs[stage], failing, self._spans)

    def payload(self, wave: router_ev.IssueWave) -> None:
        """Nothing: tokens are not looked at."""
