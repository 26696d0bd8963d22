"""What the stages of a pipeline cost, learned from their steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from wavepp.core.errors import InvalidInputError
from wavepp.core.waves.cost import Amount, PipelineCost, StageCost, pipeline_cost
from wavepp.core.waves.cost_fit import StageFit
from wavepp.core.waves.types import FitReport, StepTime

_NS_PER_MS: Final = 1e6
_REFERENCE_KEEP: Final = 0.95
_TEACH_ALL: Final = 64
"""Waves of which every step is learned from."""

_CHANGE_MIN: Final = 0.01
"""A change of every cost by less than this is not worth planning anew for."""


class CostModel:
    """One fit a stage. `version` moves when the pipeline's cost has changed enough to matter."""

    def __init__(self, priors: Sequence[StageCost], reference: Amount) -> None:
        """`priors`: one a stage, right in their proportions at best. `reference`: a step by which stages are
        compared until there are real ones.
        """
        if not priors:
            raise InvalidInputError("a pipeline has at least one stage; give a prior cost for each")
        self._fits = [StageFit(prior) for prior in priors]
        self._reference = reference
        self._waves = 0
        self.version = 0
        self.pipeline: PipelineCost = pipeline_cost(list(priors), reference)
        """The cost to plan with."""

    def measured(self, work: Amount, steps: Sequence[StepTime]) -> None:
        """A wave with this work was done; its steps, of any stages."""
        if work.tokens <= 0:
            return
        keep = _REFERENCE_KEEP
        self._reference = Amount(
            keep * self._reference.tokens + (1.0 - keep) * work.tokens,
            keep * self._reference.pairs + (1.0 - keep) * work.pairs,
        )
        changed = False
        self._waves += 1
        for step in steps:
            # Where a chunk failed on the way, the stages after it ran less than what was planned.
            whole = step.tokens == work.tokens
            if whole and 0 <= step.stage < len(self._fits) and self._teaches(step.stage):
                changed |= self._fits[step.stage].measured(work, step.duration_ns / _NS_PER_MS)
        if changed:
            self._update(pipeline_cost([fit.cost for fit in self._fits], self._reference))

    def reports(self) -> list[FitReport]:
        """By stage."""
        return [replace(fit.report(), typical_ms=fit.cost.step_ms(self._reference)) for fit in self._fits]

    def _teaches(self, stage: int) -> bool:
        """At first every step does; later every other one of a stage, since learning takes the router's time."""
        return self._waves <= _TEACH_ALL or (self._waves + stage) % 2 == 0

    def _update(self, cost: PipelineCost) -> None:
        if _differs(cost, self.pipeline, self._reference):
            self.pipeline = cost
            self.version += 1


def _differs(new: PipelineCost, old: PipelineCost, reference: Amount) -> bool:
    """Whether any part of a typical step, or the number of other stages, has changed by `_CHANGE_MIN`."""
    scale = old.slowest.step_ms(reference)
    pairs = (
        (new.slowest.launch_ms, old.slowest.launch_ms, 1.0),
        (new.slowest.token_ms, old.slowest.token_ms, reference.tokens),
        (new.slowest.pair_ms, old.slowest.pair_ms, reference.pairs),
    )
    if any(abs(after - before) * times > _CHANGE_MIN * scale for after, before, times in pairs):
        return True
    return abs(new.others - old.others) > _CHANGE_MIN * max(1.0, old.others)
