"""Learning what a stage costs: true costs are found, faults in the measurements do no harm, changes are followed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import StageIndex
from wavepp.core.waves.cost import Amount, StageCost, amount, total
from wavepp.core.waves.cost_fit import StageFit
from wavepp.core.waves.cost_model import CostModel
from wavepp.core.waves.types import FitState, StepTime

TRUE = StageCost(launch_ms=6.0, token_ms=0.018, pair_ms=7e-8)
SHORT, LONG = amount(0, 2048), amount(120_000, 4096)
NOISE = 0.03


def any_shape(draw: random.Random) -> Amount:
    return total((draw.randrange(130_000), draw.randrange(64, 8192)) for _ in range(draw.randrange(1, 3)))


def teach(
    fit: StageFit,
    steps: int,
    *,
    seed: int = 0,
    shape: Callable[[random.Random], Amount] = any_shape,
    slowdown: float = 1.0,
    outliers: float = 0.0,
) -> None:
    """`outliers`: the share of steps that take five times as long."""
    draw = random.Random(seed)
    for _ in range(steps):
        work = shape(draw)
        factor = slowdown * (1.0 + NOISE * draw.uniform(-1.0, 1.0)) * (5.0 if draw.random() < outliers else 1.0)
        fit.measured(work, TRUE.step_ms(work) * factor)


def error(fit: StageFit, work: Amount, slowdown: float = 1.0) -> float:
    """Of the prediction for one step, relative."""
    return abs(fit.cost.step_ms(work) / (TRUE.step_ms(work) * slowdown) - 1.0)


def proportions(cost: StageCost) -> tuple[float, float]:
    return cost.launch_ms / cost.token_ms, cost.pair_ms / cost.token_ms


@pytest.mark.parametrize("factor", [0.02, 0.5, 1.0, 2.0, 50.0])
@pytest.mark.parametrize("part", ["launch", "token", "pair"])
def test_true_costs_are_found_through_noise_and_outliers_from_a_wrong_prior(part: str, factor: float) -> None:
    wrong = {"launch": 1.0, "token": 1.0, "pair": 1.0} | {part: factor}
    prior = StageCost(
        TRUE.launch_ms * wrong["launch"], TRUE.token_ms * wrong["token"], TRUE.pair_ms * wrong["pair"]
    ).scaled(1000.0)
    fit = StageFit(prior)
    teach(fit, 300, outliers=0.05)
    assert fit.report().state is FitState.FITTED
    assert fit.cost.launch_ms == pytest.approx(TRUE.launch_ms, rel=0.25)
    assert fit.cost.token_ms == pytest.approx(TRUE.token_ms, rel=0.1)
    assert fit.cost.pair_ms == pytest.approx(TRUE.pair_ms, rel=0.1)
    for work in (amount(0, 64), SHORT, LONG):
        assert error(fit, work) < 0.15


def test_costs_that_are_none_stay_about_none() -> None:
    fit = StageFit(StageCost(0.0, 1.0, 0.0))
    for length in range(100, 4100, 10):
        fit.measured(amount(0, length), 0.5 * length)
    assert fit.cost.token_ms == pytest.approx(0.5, rel=0.02)
    assert fit.cost.launch_ms < 1.0


def test_before_there_are_steps_the_prior_is_used_and_after_one_its_proportions() -> None:
    fit = StageFit(TRUE.scaled(100.0))
    assert (fit.cost, fit.report().state) == (TRUE.scaled(100.0), FitState.PRIOR)
    assert fit.measured(SHORT, TRUE.step_ms(SHORT))
    assert fit.report().state is FitState.PRIOR
    assert error(fit, LONG) < 0.01


def test_steps_of_one_shape_for_ever_are_predicted_well_and_keep_the_priors_proportions() -> None:
    prior = StageCost(6.0, 0.018, 7e-8 * 5)
    fit = StageFit(prior)
    teach(fit, 3000, shape=lambda draw: LONG)
    assert error(fit, LONG) < 0.02
    assert proportions(fit.cost) == pytest.approx(proportions(prior), rel=0.02)


@pytest.mark.parametrize("pairs_wrong_by", [0.2, 5.0])
def test_another_shape_is_learned_in_twenty_steps_and_the_first_one_not_forgotten(pairs_wrong_by: float) -> None:
    fit = StageFit(StageCost(6.0, 0.018, 7e-8 * pairs_wrong_by))
    teach(fit, 200, shape=lambda draw: SHORT)
    teach(fit, 20, shape=lambda draw: LONG)
    assert error(fit, LONG) < 0.05
    assert error(fit, SHORT) < 0.05


@pytest.mark.parametrize(("slowdown", "steps"), [(0.1, 80), (3.0, 80), (10.0, 80), (0.5, 150), (1.5, 150)])
def test_a_lasting_change_of_speed_is_followed_and_so_is_the_way_back(slowdown: float, steps: int) -> None:
    fit = StageFit(StageCost(60.0, 0.018, 7e-8))
    teach(fit, 200)
    before = proportions(fit.cost)
    for seed, factor in ((1, slowdown), (2, 1.0)):
        teach(fit, steps, slowdown=factor, seed=seed)
        assert fit.report().state is FitState.FITTED
        assert error(fit, SHORT, factor) < 0.15
        assert error(fit, LONG, factor) < 0.15
        assert proportions(fit.cost) == pytest.approx(before, rel=0.4)


def test_a_hiccup_now_and_then_changes_little() -> None:
    fit = StageFit(TRUE)
    teach(fit, 200)
    for seed in range(20):
        fit.measured(SHORT, 100.0 * TRUE.step_ms(SHORT))
        teach(fit, 10, seed=seed)
        assert error(fit, SHORT) < 0.1
        assert error(fit, LONG) < 0.05
    assert fit.report().state is FitState.FITTED


def test_one_absurd_first_step_is_forgotten() -> None:
    fit = StageFit(TRUE)
    fit.measured(SHORT, 1e12)
    teach(fit, 30)
    assert error(fit, LONG) < 0.05


def test_steps_that_do_not_follow_the_model_are_refused_and_believed_again_when_they_do() -> None:
    fit, draw = StageFit(TRUE), random.Random(0)
    for _ in range(200):
        fit.measured(any_shape(draw), math.exp(draw.uniform(0.0, 9.0)))
    report = fit.report()
    assert report.state is FitState.REFUSED
    assert report.error > 0.5
    assert proportions(report.cost) == pytest.approx(proportions(TRUE))
    teach(fit, 400)
    assert fit.report().state is FitState.FITTED
    assert error(fit, LONG) < 0.05


@pytest.mark.parametrize("took_ms", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_an_impossible_time_is_ignored(took_ms: float) -> None:
    fit = StageFit(TRUE)
    assert not fit.measured(SHORT, took_ms)
    teach(fit, 50)
    before = fit.report()
    assert not fit.measured(SHORT, took_ms)
    assert fit.report() == before


@given(
    st.tuples(st.sampled_from([0.0, 1e-6, 6.0]), st.floats(1e-6, 1e3), st.sampled_from([0.0, 1e-12, 1e-7, 1.0])),
    st.lists(st.tuples(st.integers(0, 2**31), st.integers(1, 2**22), st.floats(1e-6, 1e13)), max_size=60),
)
def test_whatever_is_measured_the_cost_is_one(
    prior: tuple[float, float, float], steps: list[tuple[int, int, float]]
) -> None:
    fit = StageFit(StageCost(*prior))
    for start, length, took_ms in steps:
        before = fit.cost
        changed = fit.measured(amount(start, length), took_ms)
        assert changed == (fit.cost != before)
        # `StageCost` itself refuses what is negative or not finite.
        assert 0.0 < fit.cost.step_ms(amount(start, length)) < math.inf


# ---- the stages of a pipeline ------------------------------------------------------------------------------


def step(stage: int, took_ms: float, work: Amount) -> StepTime:
    return StepTime(StageIndex(stage), 0, int(took_ms * 1e6), 0, int(work.tokens))


def run(model: CostModel, waves: int, slowdown: list[float], seed: int = 0) -> None:
    draw = random.Random(seed)
    for _ in range(waves):
        work = any_shape(draw)
        model.measured(work, [step(stage, TRUE.step_ms(work) * by, work) for stage, by in enumerate(slowdown)])


def test_a_pipeline_without_stages_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        CostModel([], SHORT)


def test_the_slowest_stage_is_found_and_when_another_becomes_slower_it_is_that() -> None:
    model = CostModel([TRUE] * 4, SHORT)
    run(model, 60, [1.0, 1.0, 2.0, 1.0])
    assert model.pipeline.slowest.step_ms(LONG) == pytest.approx(2.0 * TRUE.step_ms(LONG), rel=0.02)
    assert model.pipeline.others == pytest.approx(1.5, rel=0.02)
    run(model, 200, [4.0, 1.0, 2.0, 1.0])
    assert model.pipeline.slowest.step_ms(LONG) == pytest.approx(4.0 * TRUE.step_ms(LONG), rel=0.05)
    assert model.pipeline.others == pytest.approx(1.0, rel=0.05)


def test_steps_that_say_what_is_known_move_no_version() -> None:
    model = CostModel([TRUE] * 2, SHORT)
    run(model, 100, [1.0, 1.0])
    assert model.version == 0
    run(model, 250, [2.0, 2.0])
    assert model.version > 0
    version = model.version
    run(model, 100, [2.0, 2.0])
    assert model.version <= version + 3


def test_steps_of_unknown_stages_and_of_waves_without_work_are_ignored() -> None:
    model = CostModel([TRUE] * 2, SHORT)
    model.measured(SHORT, [step(2, 1.0, SHORT), step(-1, 1.0, SHORT), step(1 << 40, 1.0, SHORT)])
    model.measured(Amount(0, 0), [step(0, 1.0, Amount(0, 0))])
    assert [report.steps for report in model.reports()] == [0, 0]
    assert (model.version, model.pipeline.slowest) == (0, TRUE)


def test_a_step_that_ran_less_than_what_was_planned_teaches_nothing() -> None:
    model = CostModel([TRUE] * 2, SHORT)
    model.measured(LONG, [step(0, 10.0, LONG), step(1, 1.0, SHORT)])
    assert [report.steps for report in model.reports()] == [1, 0]


def test_a_stage_that_says_nothing_keeps_its_prior() -> None:
    model = CostModel([TRUE, TRUE], SHORT)
    for _ in range(30):
        model.measured(LONG, [step(0, TRUE.step_ms(LONG), LONG)])
    assert [report.state for report in model.reports()] == [FitState.FITTED, FitState.PRIOR]
