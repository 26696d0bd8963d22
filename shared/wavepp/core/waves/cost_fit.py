"""Learning one stage's cost from the steps that it reports.

Weighted least squares for (launch, token, pair) with forgetting, done on the sums of products, so a step costs the same
however many came before. Residuals are relative, so small steps count as much as large ones; outliers are weighed down
(Huber, 1964); what the steps do not tell apart keeps the proportions of the prior (a ridge towards it). When the stage
has become slower or faster as a whole, what was learned is brought to the new speed instead of being learned anew.
"""

from __future__ import annotations

import math
from typing import Final, TypeAlias

from wavepp.core.waves.cost import Amount, StageCost
from wavepp.core.waves.types import FitReport, FitState

_KEEP: Final = 0.985
"""Weight of a step against that of the next one: about the last 100 steps count."""

_RIDGE: Final = 0.02
"""A parameter that is off its prior by its unit costs as much as so many steps' squared error."""

_MATTERS: Final = 0.2

_HUBER: Final = 2.5
"""Residuals above so many typical ones are outliers."""

_SPREAD_MIN: Final = 0.02
_SPREAD_KEEP: Final = 0.95
_REFUSED_ABOVE: Final = 0.5
"""Mean relative error above which a fit says less than the prior's proportions do."""

_TRUSTED_BELOW: Final = 0.4
_STEPS_MIN: Final = 4
_LASTING: Final = 24
"""So many outliers in a row, all slower or all faster, are no hiccups, and no new kind of step either, which fewer are
enough to learn: the stage's speed has changed."""

_EVERY: Final = 8
"""Once there are enough steps, the parameters are solved for after so many more."""

_Vector: TypeAlias = tuple[float, float, float]


class StageFit:
    """The cost of one stage, better with every step."""

    def __init__(self, prior: StageCost) -> None:
        floor = 1e-9 * (prior.token_ms + prior.pair_ms)
        self._prior: _Vector = (max(prior.launch_ms, floor), max(prior.token_ms, floor), max(prior.pair_ms, floor))
        self._products = [[0.0] * 3 for _ in range(3)]
        self._sums = [0.0] * 3
        self._weight = 0.0
        self._fitted = self._prior
        self._scale = 1.0
        self._steps = 0
        self._error = 0.0
        self._spread = 0.2
        self._surprise_above = 0.0
        self._surprises: list[float] = []
        """Measured over predicted, of the outliers to one side that came last, one after another."""
        self._refused = False
        self._cost = prior

    @property
    def cost(self) -> StageCost:
        """The best there is."""
        return self._cost

    def report(self) -> FitReport:
        """For logs and status."""
        state = FitState.REFUSED if self._refused else FitState.FITTED
        return FitReport(FitState.PRIOR if self._few else state, self._steps, self._error, self._cost)

    def measured(self, work: Amount, took_ms: float) -> bool:
        """A step with this work took so long. Whether `cost` changed."""
        if not 0.0 < took_ms < math.inf:
            return False
        features = (1.0, work.tokens, work.pairs)
        if self._steps == 0:
            # The prior's proportions at the right speed: errors are relative to something from the first step on.
            self._scale = took_ms / _dot(features, self._prior)
            self._fitted = _times(self._prior, self._scale)
        predicted = max(_dot(features, self._fitted), 1e-3 * took_ms)
        if self._speed_changed(took_ms / predicted):
            predicted = _dot(features, self._fitted)
        residual = abs(took_ms - predicted) / predicted
        self._learn(features, took_ms, predicted, residual)
        self._note_error(residual)
        self._steps += 1
        if self._steps > 2 * _EVERY and self._steps % _EVERY:
            return False
        self._solve()
        return self._choose()

    # ---- inside ----

    @property
    def _few(self) -> bool:
        return self._steps < _STEPS_MIN

    def _speed_changed(self, ratio: float) -> bool:
        """Hears of a step's measured over predicted time. If the change lasts, all that was learned follows it."""
        if self._surprises and (self._surprises[-1] > 1.0) != (ratio > 1.0):
            self._surprises.clear()
        if not self._surprises:
            # Of the time before: the surprises themselves widen the spread.
            self._surprise_above = _HUBER * self._spread
        if abs(ratio - 1.0) <= self._surprise_above:
            self._surprises.clear()
            return False
        self._surprises.append(ratio)
        if len(self._surprises) < _LASTING:
            return False
        factor = sorted(self._surprises)[_LASTING // 2]
        self._surprises.clear()
        self._fitted = _times(self._fitted, factor)
        # As if the earlier steps had taken `factor` times as long; their weights, 1 / predicted^2, go with it.
        self._products = [[product / factor**2 for product in row] for row in self._products]
        self._sums = [one / factor for one in self._sums]
        # What was wrong was the speed, which says nothing against the fit.
        self._error = min(self._error, self._spread)
        return True

    def _learn(self, features: _Vector, took_ms: float, predicted: float, residual: float) -> None:
        limit = _HUBER * self._spread
        weight = (1.0 if residual <= limit else limit / residual) / (predicted * predicted)
        self._weight = _KEEP * self._weight + weight * predicted * predicted
        for i in range(3):
            row, scaled = self._products[i], weight * features[i]
            for j in range(3):
                row[j] = _KEEP * row[j] + scaled * features[j]
            self._sums[i] = _KEEP * self._sums[i] + scaled * took_ms

    def _note_error(self, residual: float) -> None:
        share = max(1.0 - _SPREAD_KEEP, 1.0 / (self._steps + 1))
        # A single hiccup must not open the door to the next one; a lasting change must.
        self._spread += share * (min(residual, 3.0 * self._spread) - self._spread)
        self._spread = max(self._spread, _SPREAD_MIN)
        self._error += share * (min(residual, 1.0) - self._error)

    def _solve(self) -> None:
        """The minimum of the weighted squares plus the ridge, with no parameter below zero."""
        prior_error = sum(p * s for p, s in zip(self._prior, self._sums, strict=True))
        prior_square = sum(self._prior[i] * self._products[i][j] * self._prior[j] for i in range(3) for j in range(3))
        self._scale = max(prior_error / prior_square, 1e-9) if prior_square > 0.0 else self._scale
        centre = _times(self._prior, self._scale)
        free = [0, 1, 2]
        values = list(centre)
        while free:
            solved = self._solve_for(free, values, centre)
            for i, value in zip(free, solved, strict=True):
                values[i] = value
            below = [i for i in free if values[i] < 1e-3 * centre[i]]
            for i in below:
                values[i] = 1e-3 * centre[i]
            free = [i for i in free if i not in below]
            if not below:
                break
        self._fitted = (values[0], values[1], values[2])

    def _solve_for(self, free: list[int], values: list[float], centre: _Vector) -> list[float]:
        """The normal equations for the free parameters, in units of their own that make them well conditioned."""
        fixed = [i for i in range(3) if i not in free]
        units = [self._unit(i, centre[i]) for i in range(3)]
        matrix = []
        for i in free:
            rest = self._sums[i] - sum(self._products[i][j] * values[j] for j in fixed)
            row = [self._products[i][j] * units[i] * units[j] + (_RIDGE if i == j else 0.0) for j in free]
            matrix.append([*row, rest * units[i] + _RIDGE * centre[i] / units[i]])
        return [solution * units[i] for i, solution in zip(free, _eliminate(matrix), strict=True)]

    def _unit(self, parameter: int, centre: float) -> float:
        """By how much a parameter may be off its prior for the price of the ridge.

        By its own size; but where the prior says that it hardly matters, by as much as makes a part of a step.
        """
        mean_square = self._products[parameter][parameter] / self._weight
        return max(centre, _MATTERS / math.sqrt(mean_square)) if mean_square > 0.0 else centre

    def _choose(self) -> bool:
        self._refused = self._error > (_TRUSTED_BELOW if self._refused else _REFUSED_ABOVE)
        before = self._cost
        self._cost = StageCost(*(_times(self._prior, self._scale) if self._few or self._refused else self._fitted))
        return self._cost != before


def _dot(left: _Vector, right: _Vector) -> float:
    return left[0] * right[0] + left[1] * right[1] + left[2] * right[2]


def _times(vector: _Vector, factor: float) -> _Vector:
    return (vector[0] * factor, vector[1] * factor, vector[2] * factor)


def _eliminate(matrix: list[list[float]]) -> list[float]:
    """Gauss; positive definite, so without pivots. `matrix` has the right side as its last column."""
    size = len(matrix)
    for i in range(size):
        for k in range(i + 1, size):
            factor = matrix[k][i] / matrix[i][i]
            for j in range(i, size + 1):
                matrix[k][j] -= factor * matrix[i][j]
    solution = [0.0] * size
    for i in reversed(range(size)):
        known = sum(matrix[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (matrix[i][size] - known) / matrix[i][i]
    return solution
