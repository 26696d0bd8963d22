"""What steps cost: the formula, its inverse, and which stage of a pipeline is the slowest."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavepp.core.errors import InvalidInputError
from wavepp.core.waves.cost import Amount, StageCost, amount, pipeline_cost, total

COST = StageCost(launch_ms=6.0, token_ms=0.018, pair_ms=7e-8)

costs = st.builds(
    StageCost,
    st.sampled_from([0.0, 1e-3, 6.0, 1e4]),
    st.floats(1e-6, 1e3),
    st.one_of(st.just(0.0), st.floats(1e-15, 1.0)),
)
starts = st.integers(0, 2**31)
lengths = st.integers(1, 2**22)


def test_a_step_costs_its_launch_its_tokens_and_their_pairs() -> None:
    cost = StageCost(launch_ms=1.0, token_ms=2.0, pair_ms=0.5)
    # Ten tokens after 100 make 2 * 100 * 10 + 10 * 10 pairs.
    assert amount(100, 10) == Amount(10, 2100)
    assert cost.chunk_ms(100, 10) == 20.0 + 1050.0
    assert cost.step_ms(total([(100, 10), (0, 4)])) == 1.0 + (20.0 + 1050.0) + (8.0 + 8.0)


@given(costs, starts, lengths)
def test_tokens_in_inverts_the_time_of_a_chunk(cost: StageCost, start: int, length: int) -> None:
    assert cost.tokens_in(start, cost.chunk_ms(start, length)) == pytest.approx(length, rel=1e-9)


@given(costs, starts, st.floats(1e-9, 1e9))
def test_the_time_of_that_many_tokens_is_the_budget(cost: StageCost, start: int, budget_ms: float) -> None:
    tokens = cost.tokens_in(start, budget_ms)
    assert cost.work_ms(Amount(tokens, (2.0 * start + tokens) * tokens)) == pytest.approx(budget_ms, rel=1e-9)


def test_tokens_that_cost_only_their_pairs_have_an_inverse_too() -> None:
    assert StageCost(0.0, 0.0, 0.25).tokens_in(0, 25.0) == pytest.approx(10.0)


@pytest.mark.parametrize("budget_ms", [0.0, -1.0])
def test_no_token_fits_in_no_time(budget_ms: float) -> None:
    assert COST.tokens_in(1000, budget_ms) == 0.0


@given(costs, starts, lengths, lengths)
def test_a_chunk_costs_as_much_as_its_two_parts(cost: StageCost, start: int, first: int, second: int) -> None:
    parts = cost.chunk_ms(start, first) + cost.chunk_ms(start + first, second)
    assert cost.chunk_ms(start, first + second) == pytest.approx(parts, rel=1e-9)


@given(costs, st.lists(st.tuples(starts, lengths), max_size=5))
def test_a_wave_costs_as_much_as_its_chunks(cost: StageCost, chunks: list[tuple[int, int]]) -> None:
    assert cost.work_ms(total(chunks)) == pytest.approx(sum(cost.chunk_ms(*chunk) for chunk in chunks), rel=1e-9)
    amounts = [amount(*chunk) for chunk in chunks]
    assert total(chunks) == Amount(sum(one.tokens for one in amounts), sum(one.pairs for one in amounts))


@pytest.mark.parametrize(
    "parts",
    [
        (-1.0, 1.0, 0.0),
        (0.0, -1.0, 0.0),
        (0.0, 1.0, -1e-9),
        (0.0, 0.0, 0.0),
        (math.nan, 1.0, 0.0),
        (0.0, math.inf, 0.0),
    ],
)
def test_senseless_costs_are_refused(parts: tuple[float, float, float]) -> None:
    with pytest.raises(InvalidInputError):
        StageCost(*parts)


def test_of_equal_stages_the_others_are_all_but_one() -> None:
    assert pipeline_cost([COST] * 8, amount(0, 4096)).others == pytest.approx(7.0)
    assert pipeline_cost([COST], amount(0, 4096)).others == 0.0


def test_the_slowest_stage_is_the_one_with_the_longest_typical_step() -> None:
    tokens, pairs = StageCost(1.0, 1.0, 0.0), StageCost(1.0, 0.5, 1e-4)
    short, long = amount(0, 1000), amount(100_000, 1000)
    assert pipeline_cost([tokens, pairs], short).slowest == tokens
    assert pipeline_cost([tokens, pairs], long).slowest == pairs
    assert pipeline_cost([COST, COST.scaled(2.0), COST.scaled(0.5)], short).others == pytest.approx(0.75)
