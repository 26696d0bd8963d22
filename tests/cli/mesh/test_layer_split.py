"""Advice on layers against trying every split."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavepp.cli.mesh.layer_split import even_layers
from wavepp.core.errors import InvalidInputError


def test_equal_stages_are_left_as_they_are() -> None:
    assert even_layers([8, 8, 8], [4.0, 4.0, 4.0]).layers == (8, 8, 8)


def test_a_stage_that_is_slower_gets_fewer_layers() -> None:
    advice = even_layers([12, 12], [18.0, 12.0])
    assert advice.layers[0] < 12 < advice.layers[1]
    assert advice.slowest_ms == pytest.approx(15.0)


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0.1, 10.0)), min_size=1, max_size=4))
def test_no_split_has_a_faster_slowest_stage(stages: list[tuple[int, float]]) -> None:
    layers, times = [count for count, _ in stages], [took for _, took in stages]
    each = [took / count for count, took in stages]
    advice = even_layers(layers, times)
    assert sum(advice.layers) == sum(layers)
    assert min(advice.layers) >= 1
    splits = [s for s in product(range(1, sum(layers) + 1), repeat=len(layers)) if sum(s) == sum(layers)]
    best = min(max(count * one for count, one in zip(split, each, strict=True)) for split in splits)
    assert advice.slowest_ms == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize(("layers", "times"), [([], []), ([1], [1.0, 2.0]), ([0], [1.0]), ([1], [0.0])])
def test_what_makes_no_sense_is_refused(layers: list[int], times: list[float]) -> None:
    with pytest.raises(InvalidInputError):
        even_layers(layers, times)
