"""The layer split against brute force, and given by hand."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavepp.stage.model.adapters.dense import DenseAdapter
from wavepp.stage.model.errors import ModelError
from wavepp.stage.model.split import explicit_split, head_cost, layer_costs, split_layers, split_model

SMOL = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
}


def stage_costs(costs: list[float], spans: tuple[tuple[int, int], ...], first: float, last: float) -> list[float]:
    totals = [sum(costs[a:b]) for a, b in spans]
    totals[0] += first
    totals[-1] += last
    return totals


@given(
    st.lists(st.integers(1, 50).map(float), min_size=1, max_size=9),
    st.data(),
    st.integers(0, 60).map(float),
    st.integers(0, 60).map(float),
)
def test_no_other_split_has_a_smaller_largest_stage(
    costs: list[float], data: st.DataObject, first: float, last: float
) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    spans = split_layers(costs, stages, first_cost=first, last_cost=last)
    assert spans[0][0] == 0
    assert spans[-1][1] == len(costs)
    assert all(a < b for a, b in spans)
    assert all(before[1] == after[0] for before, after in pairwise(spans))

    def every() -> list[list[float]]:
        found = []
        for cuts in combinations(range(1, len(costs)), stages - 1):
            bounds = (0, *cuts, len(costs))
            found.append(stage_costs(costs, tuple(pairwise(bounds)), first, last))
        return found

    mine = stage_costs(costs, spans, first, last)
    smallest = min(max(totals) for totals in every())
    assert max(mine) == smallest
    squares = min(sum(t * t for t in totals) for totals in every() if max(totals) == smallest)
    assert sum(t * t for t in mine) == squares


def test_cuts_are_made_at_legal_layers_only() -> None:
    assert split_layers([1.0] * 8, 2, legal_cuts=frozenset({1, 3, 6})) == ((0, 3), (3, 8))
    with pytest.raises(ModelError, match="1 to 2"):
        split_layers([1.0] * 8, 3, legal_cuts=frozenset({4}))


def test_the_head_takes_layers_off_the_last_stage_when_it_weighs_enough() -> None:
    adapter = DenseAdapter("llama")
    shape = adapter.shape(SMOL)
    assert split_model(shape, adapter, 2) == ((0, 15), (15, 30))
    costs = layer_costs(shape, adapter)
    # Two computed tokens a prompt: the head runs often.
    spans = split_layers(costs, 2, last_cost=head_cost(shape, computed_tokens=2))
    assert spans[1][1] - spans[1][0] < 15


def test_a_split_by_hand_must_cover_the_model() -> None:
    assert explicit_split((2, 3, 1), 6) == ((0, 2), (2, 5), (5, 6))
    for counts in ((2, 3), (6, 0), (-1, 7)):
        with pytest.raises(ModelError, match="every stage needs at least one"):
            explicit_split(counts, 6)
    with pytest.raises(ModelError, match="before layer 2"):
        explicit_split((2, 4), 6, frozenset({3}))


@pytest.mark.parametrize("stages", [0, 31])
def test_too_many_or_no_stages_are_refused(stages: int) -> None:
    with pytest.raises(ModelError, match="1 to 30"):
        split_layers([1.0] * 30, stages)
